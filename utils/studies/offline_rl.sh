#!/usr/bin/env bash
# Offline RL on RAG (the baseline in arXiv 2508.10695): sample N answers per training question, score them by the judge,
# fine-tune on the best, and repeat. OBJECTIVE=dpo learns pairs of the best and the worst instead.
source utils/studies/beyond_steps.sh || exit 2 # not in the root of the repository
compare offline_rl none rag offline_rl
