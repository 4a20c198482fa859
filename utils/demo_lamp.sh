#!/bin/sh
# LaMP and LongLaMP on their sample data with small real models: a rating, a headline and a post, without the profile and
# with RAG over two rankings, scored without a judge, to the tables and LaMP's own files. Run by `make demo-lamp`.
# Each command is printed before it runs; a second run finds everything finished and leaves it alone.
set -eu
num_stages=5
. utils/cli/stages.sh
data=demo/lamp/data
out=demo/lamp/output
limits="--max_tokens 48 --constrained_decoding always"
sets="LaMP-3_user_dev LaMP-4_user_dev LongLaMP-topic_user_val"

# Of a dataset's answers, in files $out/<dataset>_<system>.json, the scores by a metric.
score() {
    answers= scores=
    for system in none bm25 dense; do
        answers="$answers $out/$1_$system.json"
        scores="$scores $out/$1_${system}_$2.json"
    done
    # shellcheck disable=SC2086 (words)
    run "$python" evaluate_responses.py --strategy "$2" --inputs_addr "$data/$1.json" --response_addr $answers \
        --score_addr $scores --overwrite changed
}

table() {
    run "$python" utils/make_table.py \
        --system "No personalization" "$out/$1_none_$2.json" \
        --system "RAG (BM25)" "$out/$1_bm25_$2.json" \
        --system "RAG (encoder)" "$out/$1_dense_$2.json"
}

printf 'LaMP-3, LaMP-4 and a task of LongLaMP, 6 questions each, with small models: about 4 minutes on two cores.\n'
printf 'A run that is ended goes on where it was: make demo-lamp\n'

begin "the benchmarks' own files become datasets"
for task in LaMP-3 LaMP-4; do
    run "$python" utils/download_datasets.py --dataset $task --setting user --source_dir tests/data/mini_lamp \
        --output_dir $data
done
run "$python" utils/download_datasets.py --dataset LongLaMP-topic --setting user --source_dir tests/data/mini_longlamp \
    --output_dir $data

begin "what a user wrote before is ranked by its nearness to the question, by words and by an encoder"
for set in $sets; do
    run "$python" retrieval/rank_dataset.py --ranker bm25 --input_dataset_addr $data/$set.json \
        --output_dataset_addr $out/${set}_bm25_ranked.json --overwrite changed
    run "$python" retrieval/rank_dataset.py --model_name $encoder \
        --input_dataset_addr $data/$set.json --output_dataset_addr $out/${set}_dense_ranked.json --overwrite changed
done

begin "answers without the profile, and with its four nearest items (RAG); a rating is held to 1 to 5"
for set in $sets; do
    run "$python" baselines.py --model_addr $chat --inputs_addr $data/$set.json --output_addr $out/${set}_none.json \
        $limits --overwrite changed
    for ranker in bm25 dense; do
        run "$python" baselines.py --model_addr $chat --inputs_addr $out/${set}_${ranker}_ranked.json --rag \
            --num_contexts 4 --output_addr $out/${set}_$ranker.json $limits --overwrite changed
    done
done

begin "the answers are compared with what the users wrote, without a judge"
score LaMP-3_user_dev MAE
score LaMP-3_user_dev RMSE
for set in LaMP-4_user_dev LongLaMP-topic_user_val; do
    score $set rouge-1
    score $set rouge-L
done

begin "tables, and the answers as LaMP's own scorers take them"
table LaMP-3_user_dev MAE
table LaMP-4_user_dev rouge-1
table LongLaMP-topic_user_val rouge-1
run "$python" utils/export_predictions.py --output_dir $out/export \
    --inputs_addr $data/LaMP-3_user_dev.json $data/LaMP-4_user_dev.json \
    --response_addr $out/LaMP-3_user_dev_dense.json $out/LaMP-4_user_dev_dense.json
printf '\nThe numbers show that the pipeline works, not how good a method is. MAE is an error: lower is better.\n'
printf 'METEOR, of LongLaMP, is left out: it needs WordNet (docs/evaluation.md).\n'
