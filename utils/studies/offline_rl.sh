#!/usr/bin/env bash
# Offline RL on RAG (the baseline in arXiv 2508.10695): sample N answers per training question, score them by the judge,
# fine-tune on the best, and repeat. OBJECTIVE=dpo learns from pairs of the best and the worst answer instead, with the same
# samples in round 1, and makes a table of its own.
source utils/studies/beyond_steps.sh || exit 2 # not in the root of the repository
case ${OBJECTIVE-sft} in
    sft) compare offline_rl none rag offline_rl ;;
    dpo) compare dpo none rag dpo ;;
    *) echo "error: OBJECTIVE=$OBJECTIVE: must be sft or dpo" >&2 && exit 2 ;;
esac
