#!/usr/bin/env bash
# The paper's Figure 3, with Qwen2.5 7B: plans by the planner, and plans made of the rubric's own titles.
MODELS=${MODELS-Qwen/Qwen2.5-7B-Instruct} OPENAI_MODELS=${OPENAI_MODELS-}
source utils/studies/lampqa_steps.sh || exit 2 # not in the root of the repository
SEEDS=${SEEDS%% *} # a figure shows only one seed

for category in $CATEGORIES; do
    rank "$SPLIT"
    train
    answers=()
    for model in $MODELS $OPENAI_MODELS; do
        answer planpers
        answer planpers_gold
    done
    judge
done
for model in $MODELS $OPENAI_MODELS; do
    systems=()
    row "PlanPers" planpers
    row "PlanPers, gold plans" planpers_gold
    figure=${model##*/}/$SPLIT/figure3$(judge_suffix)
    draw "$figure.md" "${scored[*]}" python utils/make_table.py --output_addr "$OUT/$figure.md" "${systems[@]}"
    draw "$figure" "${scored[*]}" python utils/make_figures.py --figure 3 --output_addr "$OUT/$figure" "${systems[@]}"
done
