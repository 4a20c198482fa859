#!/usr/bin/env bash
# PR2 (arXiv 2602.19317): the policy learns what to search, by GRPO on rounds of N samples per question. The first one
# answers without a search. docs/beyond_planpers.md lists what comes from the paper and what is ours.
N=${N-5}
source utils/studies/beyond_steps.sh || exit 2 # not in the root of the repository
compare pr2 none rag pr2
