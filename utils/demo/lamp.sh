#!/bin/sh
# LaMP and LongLaMP on their sample data with small real models: a rating, a headline and a post, without the profile
# and with RAG over two rankings, scored without a judge, to tables and LaMP's own files. Run by `make demo-lamp`.
# Each command is printed before it runs. A second run skips finished outputs.
set -eu
num_stages=5
. utils/demo/stages.sh
data=demo/lamp/data
out=demo/lamp/output
limits="--max_tokens 48 --constrained_decoding always"
sets="LaMP-3_user_dev LaMP-4_user_dev LongLaMP-topic_user_val"

# Datasets and metrics, one list per table.
lamp="LaMP-3_user_dev:MAE LaMP-3_user_dev:RMSE LaMP-4_user_dev:rouge-1 LaMP-4_user_dev:rouge-L"
longlamp="LongLaMP-topic_user_val:rouge-1 LongLaMP-topic_user_val:rouge-L"

# The score files of a system (in $out, as <dataset>_<system>_<metric>.json) for a table.
scores() {
    system=$1
    shift
    for scored in "$@"; do
        printf '%s ' "$out/${scored%:*}_${system}_${scored#*:}.json"
    done
}

table() {
    # shellcheck disable=SC2046 (words)
    run "$python" utils/make_table.py \
        --system "No personalization" $(scores none "$@") \
        --system "RAG (BM25)" $(scores bm25 "$@") \
        --system "RAG (encoder)" $(scores dense "$@")
}

printf 'LaMP-3, LaMP-4 and a task of LongLaMP, 6 questions each, with small models: about 4 minutes on two cores.\n'
printf 'To resume an interrupted run: make demo-lamp\n'

begin "convert the benchmarks' files to datasets"
for task in LaMP-3 LaMP-4; do
    run "$python" utils/download_datasets.py --dataset $task --setting user --source_dir tests/data/mini_lamp \
        --output_dir $data
done
run "$python" utils/download_datasets.py --dataset LongLaMP-topic --setting user --source_dir tests/data/mini_longlamp \
    --output_dir $data

begin "rank what each user wrote earlier by similarity to the question: by words and with an encoder"
for set in $sets; do
    run "$python" retrieval/rank_dataset.py --ranker bm25 --input_dataset_addr $data/$set.json \
        --output_dataset_addr $out/${set}_bm25_ranked.json --overwrite
    run "$python" retrieval/rank_dataset.py --model_name $encoder --input_dataset_addr $data/$set.json \
        --output_dataset_addr $out/${set}_dense_ranked.json --overwrite
done

begin "answer without the profile, and with its four best items (RAG); ratings are constrained to 1 to 5"
for set in $sets; do
    # shellcheck disable=SC2086 (words)
    run "$python" baselines.py --model_addr $chat --inputs_addr $data/$set.json --output_addr $out/${set}_none.json \
        $limits --overwrite
    for ranker in bm25 dense; do
        run "$python" baselines.py --model_addr $chat --inputs_addr $out/${set}_${ranker}_ranked.json --rag \
            --num_contexts 4 --output_addr $out/${set}_$ranker.json $limits --overwrite
    done
done

begin "compare the answers with what the users wrote, without a judge"
for scored in $lamp $longlamp; do
    set=${scored%:*} metric=${scored#*:}
    run "$python" evaluate_responses.py --strategy $metric --inputs_addr $data/$set.json --overwrite \
        --response_addr $out/${set}_none.json $out/${set}_bm25.json $out/${set}_dense.json \
        --score_addr $out/${set}_none_$metric.json $out/${set}_bm25_$metric.json $out/${set}_dense_$metric.json
done

begin "make tables, and export the answers in the format of LaMP's scorers"
# shellcheck disable=SC2086 (words)
table $lamp
table $longlamp
run "$python" utils/export_predictions.py --output_dir $out/export \
    --inputs_addr $data/LaMP-3_user_dev.json $data/LaMP-4_user_dev.json \
    --response_addr $out/LaMP-3_user_dev_dense.json $out/LaMP-4_user_dev_dense.json
printf '\nThe numbers show that the pipeline works, not how good a method is. MAE is an error: lower is better.\n'
printf 'METEOR (LongLaMP) is left out, because it needs WordNet (docs/evaluation.md).\n'
