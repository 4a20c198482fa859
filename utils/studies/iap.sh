#!/usr/bin/env bash
# IAP (arXiv 2605.12645): the policy learns to write the asker's intent before the answer, by GRPO on rounds of N samples
# per question. docs/beyond_planpers.md lists what comes from the paper and what is ours.
N=${N-8}
source utils/studies/beyond_steps.sh || exit 2 # not in the root of the repository
compare iap none rag iap
