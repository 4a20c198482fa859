#!/usr/bin/env bash
# The paper's Figure 4, with Qwen2.5 7B: the scores of judges of four sizes, and how often they agree with people.
# HUMANS is a file of people's choices, in the format that utils/compare_evaluators.py --help describes (`first` is
# PlanPers, `second` is RAG). Without it, the study makes score files and tables, but no figure.
MODELS=${MODELS-Qwen/Qwen2.5-7B-Instruct} OPENAI_MODELS=${OPENAI_MODELS-}
JUDGES=${JUDGES-Qwen/Qwen2.5-0.5B-Instruct Qwen/Qwen2.5-3B-Instruct Qwen/Qwen2.5-7B-Instruct Qwen/Qwen2.5-32B-Instruct}
source utils/studies/lampqa_steps.sh || exit 2 # not in the root of the repository
SEEDS=${SEEDS%% *} # a figure shows only one seed
unset TABLE_JUDGE  # every judge in JUDGES makes a table

for category in $CATEGORIES; do
    rank "$SPLIT"
    train
    answers=()
    for model in $MODELS $OPENAI_MODELS; do
        answer planpers
        answer rag
    done
    for JUDGE in $JUDGES; do
        judge
    done
done
for model in $MODELS $OPENAI_MODELS; do
    evaluators=()
    for JUDGE in $JUDGES; do
        systems=()
        row "PlanPers" planpers
        row "RAG (asker's profile)" rag
        table=${model##*/}/$SPLIT/figure4$(judge_suffix)
        draw "$table" "${scored[*]}" python utils/make_table.py --output_addr "$OUT/$table.md" "${systems[@]}" \
            --baseline "RAG (asker's profile)"
        evaluators+=(--evaluator "${JUDGE##*/}")
        for category in $CATEGORIES; do
            for method in planpers rag; do
                evaluators+=("$OUT/$(answer_name "$category" "$method" 10 "$SEEDS")_scores$(judge_suffix).json")
            done
        done
    done
    figure=${model##*/}/$SPLIT/figure4_agreement
    if [ -z "${HUMANS-}" ]; then
        echo "note: figure 4 is not drawn: set HUMANS to a file of people's choices" >&2
        continue
    fi
    draw "$figure" "${scored[*]}" python utils/compare_evaluators.py --human_addr "$HUMANS" "${evaluators[@]}" \
        --output_addr "$OUT/$figure.json"
    draw "${figure%_agreement}.png" "$figure" python utils/make_figures.py --figure 4 \
        --output_addr "$OUT/${figure%_agreement}" --agreement_addr "$OUT/$figure.json"
done
