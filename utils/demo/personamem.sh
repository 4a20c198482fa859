#!/bin/sh
# PersonaMem on its sample data with small real models: the whole history, RAG over its messages, no history, and the
# likeliest option, scored without a judge, to the table. Run by `make demo-personamem`.
# Each command is printed before it runs. A second run skips finished outputs.
set -eu
num_stages=5
. utils/demo/stages.sh
sample=tests/data/mini_personamem
data=demo/personamem/data
out=demo/personamem/output
set=PersonaMem_32k
# Prompts and answers are far shorter than PersonaMem's, so a small cache is enough.
limits="--max_model_len 4096"
letters="--max_tokens 24 --constrained_decoding always"

# Ask all questions, into $out/<the first argument>.json.
# shellcheck disable=SC2086 (words)
ask() {
    output=$1 inputs=$2
    shift 2
    run "$python" baselines.py --model_addr $chat --inputs_addr $inputs --output_addr $out/$output.json $limits "$@" \
        --overwrite
}

printf '%d questions on three long histories, with small models: about 4 minutes on two cores.\n' \
    "$(grep -c '^[0-9a-f]' $sample/questions_32k.csv)"
printf 'To resume an interrupted run: make demo-personamem\n'

begin "convert the benchmark's files to a dataset that refers to its histories"
run "$python" utils/download_datasets.py --dataset PersonaMem-32k --source_dir $sample --output_dir $data

begin "rank the messages before each question by similarity to it, with an encoder"
run "$python" retrieval/rank_dataset.py --model_name $encoder --unit message --input_dataset_addr $data/$set.json \
    --output_dataset_addr $out/ranked.json --overwrite

begin "choose a letter without a history, with the five best messages (RAG), and with the whole history"
# shellcheck disable=SC2086 (words)
ask none $data/$set.json --rag --num_contexts 0 $letters
# shellcheck disable=SC2086 (words)
ask rag $out/ranked.json --rag --num_contexts 5 $letters
# shellcheck disable=SC2086 (words)
ask whole $data/$set.json $letters

begin "choose the likeliest option instead of a letter, with the whole history"
ask likelihood $data/$set.json --choose likelihood

begin "compare the choices with the right ones, without a judge"
for system in none rag whole likelihood; do
    responses="${responses:-} $out/$system.json" scores="${scores:-} $out/${system}_scores.json"
done
# shellcheck disable=SC2086 (words)
run "$python" evaluate_responses.py --inputs_addr $data/$set.json --response_addr $responses --score_addr $scores \
    --overwrite
run "$python" utils/make_table.py --baseline "No history" \
    --system "No history" $out/none_scores.json --system "RAG (5 messages)" $out/rag_scores.json \
    --system "Whole history" $out/whole_scores.json --system "Likelihood" $out/likelihood_scores.json
printf '\nThe numbers show that the pipeline works, not how good a method is. With four options, .25 is chance.\n'
