#!/usr/bin/env bash
# The paper's Table 2: three models, four methods, on the test set. Also the random-profile experiment of section 5.2.
#
#   bash utils/studies/table2.sh                                  # every command, one after the other
#   DRY_RUN=1 bash utils/studies/table2.sh                        # count requests and find mistakes; run nothing
#   SBATCH="--partition=gpu" bash utils/studies/table2.sh         # as SLURM jobs
#   MODELS=my/model OPENAI_MODELS= SEEDS="0 1 2" bash utils/studies/table2.sh
#   METHODS="none rag mine.py" bash utils/studies/table2.sh       # other rows, also your own methods
STUDY=${STUDY-table2} METHODS=${METHODS-none rag_random rag planpers}
source utils/studies/lampqa_steps.sh || exit 2 # not in the root of the repository
name_methods "$known"

for category in $CATEGORIES; do
    [ "$METHODS" = none ] || rank "$SPLIT"
    [[ " $METHODS " != *" rag_random "* ]] || rank_with_random_profile
    [[ " $METHODS " != *" planpers "* ]] || train
done
for category in $CATEGORIES; do
    answers=()
    for model in $MODELS $OPENAI_MODELS; do
        for method in "${methods[@]}"; do
            answer "$method"
        done
    done
    judge
done
for model in $MODELS $OPENAI_MODELS; do
    systems=() baselines=() spread=()
    for method in "${methods[@]}"; do row "${titles[$method]-$method}" "$method"; done
    # shellcheck disable=SC2206 # seeds are split into words
    seeds=($SEEDS)
    if ((${#baselines[@]} == ${#methods[@]} * ${#seeds[@]})); then # every row is a baseline: keep only the first
        baselines=("${baselines[@]:0:${#methods[@]}>1?${#seeds[@]}:0}")
    fi
    table=${model##*/}/$SPLIT/$STUDY$(judge_suffix)
    draw "$table" "${scored[*]}" python utils/make_table.py --output_addr "$OUT/$table.md" "${systems[@]}" \
        ${baselines:+--baseline "${baselines[@]}"} "${spread[@]}"
done
