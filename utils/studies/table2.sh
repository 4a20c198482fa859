#!/usr/bin/env bash
# The paper's Table 2: three models, four methods, on the test set. Also the random-profile experiment of section 5.2.
#
#   bash utils/studies/table2.sh                                  # every command, one after the other
#   DRY_RUN=1 bash utils/studies/table2.sh                        # what they would ask, and what they would refuse
#   SBATCH="--partition=gpu" bash utils/studies/table2.sh         # as SLURM jobs
#   MODELS=my/model OPENAI_MODELS= SEEDS="0 1 2" bash utils/studies/table2.sh
STUDY=${STUDY-table2}
source utils/studies/lampqa_steps.sh || exit 2 # not in the root of the repository

for category in $CATEGORIES; do
    rank_with_random_profile
    train
done
for category in $CATEGORIES; do
    answers=()
    for model in $MODELS $OPENAI_MODELS; do
        for method in none rag_random rag planpers; do
            answer "$method"
        done
    done
    judge
done
for model in $MODELS $OPENAI_MODELS; do
    systems=() baselines=() spread=()
    row "No personalization" none
    row "RAG (random profile)" rag_random
    row "RAG (asker's profile)" rag
    row "PlanPers" planpers
    table=${model##*/}/$SPLIT/$STUDY$(judge_suffix)
    draw "$table" "${scored[*]}" python utils/make_table.py --output_addr "$OUT/$table.md" "${systems[@]}" \
        --baseline "${baselines[@]}" "${spread[@]}"
done
