#!/usr/bin/env bash
# The tables of LaMP's paper (arXiv 2304.11406) in its user-based and its time-based setting, with a model that is not
# fine-tuned: without a profile, and with k items from it, by four rankers. The table also shows the paper's
# numbers, which are those of another model.
# LaMP-6 is made from the licensed Avocado corpus: if you lack the corpus, remove LaMP-6 from TASKS.
#
#   MODELS=my/model TASKS="LaMP-3 LaMP-4" SETTINGS=user bash utils/studies/lamp.sh
STUDY=${STUDY-lamp} OUT=${OUT-output/lamp}
MODELS=${MODELS-Qwen/Qwen2.5-7B-Instruct}
OPENAI_MODELS=${OPENAI_MODELS-} KEY=${KEY-} # models behind an API, and a file with its key
POSTS=${POSTS-1 4} METHODS=${METHODS-none rag}
PAPER=${PAPER-FlanT5-base}
source utils/studies/lamp_steps.sh || exit 2 # not in the root of the repository
check_models
name_methods "none rag"

for setting in $SETTINGS; do
    for task in $TASKS; do
        for ranker in $RANKERS; do
            rank "$SPLIT" "$ranker"
        done
    done
done
for model in $MODELS $OPENAI_MODELS; do
    access "$model"
    with=("$model" "${api[@]}" "${engine[@]}")
    for setting in $SETTINGS; do
        begin_table
        for task in $TASKS; do
            begin_task ""
            data=${task}_${setting}_$SPLIT
            for method in "${methods[@]}"; do
                case $method in
                    none)
                        GPUS=$gpus answer "No personalization" none "" "${with[@]}" --inputs_addr "$DATA/$data.json"
                        continue
                        ;;
                    rag) title='' flags=(--rag) ;;
                    # shellcheck disable=SC2206 # flags are split into words
                    *) title="$method, " flags=(--method "${own[$method]}" ${METHOD_FLAGS-}) ;;
                esac
                for ranker in $RANKERS; do
                    ranked=ranked/${data}_by_$ranker
                    for k in $POSTS; do
                        GPUS=$gpus answer "$title${titles[$ranker]}, k = $k" "${method}_by_${ranker}_k$k" "$ranked" \
                            "${with[@]}" "${flags[@]}" --num_contexts "$k" --inputs_addr "$OUT/$ranked.json"
                    done
                done
            done
            score
        done
        table "$STUDY" "No personalization"
    done
done
