#!/usr/bin/env bash
# The paper's second experiment (section 5.2): RAG with the asker's own profile, and with another user's.
source utils/studies/lampqa_steps.sh || exit 2 # not in the root of the repository

for category in $CATEGORIES; do
    rank_with_random_profile
    answers=()
    for model in $MODELS $OPENAI_MODELS; do
        answer rag_random
        answer rag
    done
    judge
done
for model in $MODELS $OPENAI_MODELS; do
    systems=() baselines=() spread=()
    row "RAG (random profile)" rag_random
    against=("${baselines[@]}")
    row "RAG (asker's profile)" rag
    table=${model##*/}/$SPLIT/random_profiles$(judge_suffix)
    draw "$table" "${scored[*]}" python utils/make_table.py --output_addr "$OUT/$table.md" "${systems[@]}" \
        --baseline "${against[@]}" "${spread[@]}"
done
