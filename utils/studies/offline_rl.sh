#!/usr/bin/env bash
# Offline RL on RAG (the baseline in arXiv 2508.10695): sample N answers per training question, score them with the
# judge, fine-tune on the best, and repeat. OBJECTIVE=dpo trains on pairs of the best and the worst answer instead, and
# makes its own table. In round 1, both objectives use the same samples.
source utils/studies/beyond_steps.sh || exit 2 # not in the root of the repository
case ${OBJECTIVE-sft} in
    sft) compare offline_rl none rag offline_rl ;;
    dpo) compare dpo none rag dpo ;;
    *) echo "error: OBJECTIVE=$OBJECTIVE: must be sft or dpo" >&2 && exit 2 ;;
esac
