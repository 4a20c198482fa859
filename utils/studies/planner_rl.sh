#!/usr/bin/env bash
# PlanPers with a planner that learns further: after its training on aspects, it is rewarded by the scores of the answers
# to N plans per question (GRPO). The generator stays as it is. No paper has this method.
N=${N-8}
source utils/studies/beyond_steps.sh || exit 2 # not in the root of the repository
compare planner_rl none rag planpers planner_rl
