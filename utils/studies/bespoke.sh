#!/usr/bin/env bash
# BESPOKE (arXiv 2509.21106): how far a judge agrees with the people who scored responses; then answers without a history,
# with the POSTS best sessions, and with as many as fit, the last of the files first. docs/bespoke.md describes the paper.
DATA=${DATA-data} OUT=${OUT-output/bespoke} POSTS=${POSTS-5} METHODS=${METHODS-none rag whole}
MODELS=${MODELS-Qwen/Qwen2.5-7B-Instruct} OPENAI_MODELS=${OPENAI_MODELS-} KEY=${KEY-}
JUDGE=${JUDGE-Qwen/Qwen2.5-32B-Instruct} ENCODER=${ENCODER-facebook/contriever-msmarco}
source utils/studies/steps.sh || exit 2 # not in the root of the repository
check_models
name_methods "none rag whole"
declare -A titles=([none]="No history" [rag]="$POSTS sessions" [whole]="As many sessions as fit")

judge() { # NAME DATASET RESPONSES STRATEGY...: judge responses by each strategy
    local strategy
    engine ${JUDGE_FLAGS-}
    for strategy in "${@:4}"; do
        GPUS=$gpus step "$1_$strategy" "${waits-}" python evaluate_responses.py --strategy "$strategy" \
            --evaluator_llm "$JUDGE" --inputs_addr "$2" --response_addr "$3" --score_addr "$OUT/$1_$strategy.json" \
            "${engine[@]}" ${JUDGE_FLAGS-}
    done
}

judge people "$DATA/BESPOKE_meta_test.json" "$DATA/BESPOKE_meta_test_responses.json" personal
draw agreement people_personal python utils/compare_evaluators.py \
    --corrected "${JUDGE##*/}" "$OUT/people_personal.json" "$DATA/BESPOKE_meta_test_ratings.json" \
    --output_addr "$OUT/agreement.json"

if [[ " $METHODS " == *" rag "* ]] || ((${#own[@]})); then
    step ranked "" python retrieval/rank_dataset.py --model_name "$ENCODER" --output_dataset_addr "$OUT/ranked.json" \
        --input_dataset_addr "$DATA/BESPOKE_all.json" ${RANK_FLAGS-}
fi
GPUS=0 step newest "" python retrieval/rank_dataset.py --ranker recency --input_dataset_addr "$DATA/BESPOKE_all.json" \
    --output_dataset_addr "$OUT/newest.json"
for model in $MODELS $OPENAI_MODELS; do
    personal=() recall=() scored=() folder=${model##*/}
    for method in "${methods[@]}"; do
        access "$model"
        case $method in
            none) waits="" flags=(baselines.py --inputs_addr "$DATA/BESPOKE_all.json") ;;
            rag) waits=ranked flags=(baselines.py --rag --num_contexts "$POSTS" --inputs_addr "$OUT/ranked.json") ;;
            whole) waits=newest flags=(baselines.py --rag --num_contexts 1000 --inputs_addr "$OUT/newest.json") ;;
            *)
                waits=ranked flags=(baselines.py --method "${own[$method]}" --num_contexts "$POSTS" ${METHOD_FLAGS-})
                flags+=(--inputs_addr "$OUT/ranked.json")
                ;;
        esac
        name=$folder/$method
        GPUS=$gpus step "$name" "$waits" python "${flags[@]}" --model_addr "$model" --output_addr "$OUT/$name.json" \
            "${api[@]}" "${engine[@]}" $(answer_flags ${ANSWER_FLAGS-})
        waits=$name judge "$name" "$DATA/BESPOKE_all.json" "$OUT/$name.json" personal recall
        personal+=(--system "${titles[$method]-$method}" "$OUT/${name}_personal.json")
        recall+=(--system "${titles[$method]-$method}" "$OUT/${name}_recall.json")
        scored+=("${name}_personal" "${name}_recall")
    done
    draw "$folder/personal" "${scored[*]}" python utils/make_table.py --output_addr "$OUT/$folder/personal.md" "${personal[@]}"
    draw "$folder/recall" "${scored[*]}" python utils/make_table.py --output_addr "$OUT/$folder/recall.md" "${recall[@]}"
done
