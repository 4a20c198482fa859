#!/usr/bin/env bash
# PlanPers with a planner that is trained further: after training on aspects, GRPO rewards it with the scores of the answers
# to N plans per question. The generator does not change. This method is ours, not from a paper.
N=${N-8}
source utils/studies/beyond_steps.sh || exit 2 # not in the root of the repository
compare planner_rl none rag planpers planner_rl
