#!/usr/bin/env bash
# LaMP's own tables (arXiv 2304.11406) in its user-based and its time-based setting, with its own systems: FlanT5-base,
# fine-tuned on each task with the same kind of prompt that it is tested with. It answers without a profile, with one item
# by four rankers, with several items in the prompt (IPA), and with 16 fused in the decoder (FiD). The tables also show the
# paper's numbers.
# The paper's IPA uses the best number of items for each task. Here IPA_POSTS is the same for all tasks; several numbers,
# such as "2 4 8 12 16", make one row each. $SPLIT also chooses the checkpoints, so its scores are optimistic, and the table
# says so. LaMP withholds the answers to its test sets; utils/export_predictions.py writes the files for its leaderboard.
# LaMP-6 is made from the licensed Avocado corpus: if you lack the corpus, remove LaMP-6 from TASKS.
#
#   $OUT/generator/<setting>/<task>/<method>/best
# shellcheck disable=SC2086 # flags are words
OUT=${OUT-output/lamp_flant5} MODEL=${MODEL-google/flan-t5-base} SEED=${SEED-0}
IPA_POSTS=${IPA_POSTS-4} PAPER=${PAPER-FlanT5-base} SEEDS=$SEED
source utils/studies/lamp_steps.sh || exit 2 # not in the root of the repository
model=$MODEL

fine_tuned() { # TITLE METHOD POSTS SUFFIX FLAGS...: train and answer with ranked files (SUFFIX) or with the datasets ("")
    local stem=$2 data=${task}_$setting from=$OUT/ranked waits=() items=() generator
    if [ "$3" != 0 ]; then
        stem+=_k$3 items=(--trim_items)
    fi
    generator=generator/$setting/$task/$stem
    if [ -n "$4" ]; then
        waits=("ranked/${data}_train$4" "ranked/${data}_$SPLIT$4")
    else
        from=$DATA
    fi
    step "$generator" "${waits[*]}" "${training[@]}" utils/train_generator.py --model_addr "$MODEL" "${form[@]}" "${@:5}" \
        --inputs_addr "$from/${data}_train$4.json" --validation_addr "$from/${data}_$SPLIT$4.json" --num_contexts "$3" \
        "${items[@]}" --seed "$SEED" --output_dir "$OUT/$generator" "${batch[@]}" ${TRAIN_FLAGS-}
    [ "$3" = 0 ] || items+=(--rag --num_contexts "$3")
    GPUS=1 answer "$1" "$stem" "${waits[*]:1} $generator" "$OUT/$generator/best" "${form[@]}" "${items[@]}" \
        --inputs_addr "$from/${data}_$SPLIT$4.json"
}

baselines=("No personalization" "Random, non-personalized")
for ranker in $RANKERS; do baselines+=("${titles[$ranker]}, k = 1"); done
form=(--prompts_dir prompts/lamp_flant5) # the prompts of LaMP's paper
for setting in $SETTINGS; do
    begin_table
    for task in $TASKS; do
        begin_task -official
        training 64 16 # 64 questions per update, at most 16 at a time
        for split in train "$SPLIT"; do
            for ranker in $RANKERS; do rank "$split" "$ranker"; done
            [[ " $RANKERS " == *" contriever "* ]] || rank "$split" contriever # IPA and FiD read this ranking
            rank "$split" random --other_profile random
        done
        fine_tuned "No personalization" none 0 ""
        fine_tuned "Random, non-personalized" rag_random 1 _random_by_random
        for ranker in $RANKERS; do
            fine_tuned "${titles[$ranker]}, k = 1" "rag_by_$ranker" 1 "_by_$ranker"
        done
        for k in $IPA_POSTS; do fine_tuned "IPA, k = $k" ipa "$k" _by_contriever; done
        training 64 4
        fine_tuned "FiD, k = 16" fid 16 _by_contriever --fusion decoder
        score
    done
    table lamp_flant5 "${baselines[@]}"
done
