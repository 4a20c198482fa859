#!/bin/sh
# Build data like PersonaMem's from scratch, and answer its questions. Run by `make demo-build`.
# Personas, conversations and questions come from a scripted server (tests/building/persona_model.py), because the
# demo's model is too small to write this JSON. Small talk, ranking and answers come from real small models.
set -eu
num_stages=5
. utils/demo/stages.sh
out=demo/build/output
data=demo/build/data
port=${PORT:-8765}
build="utils/build_personamem.py --output_dir $out --n_persona 2 --topics foodRecommendation therapy --seed 1"

mkdir -p $out
printf 'sk-scripted\n' > $out/key.txt
PYTHONPATH=.:tests "$python" tests/building/persona_model.py --port "$port" &
server=$!
trap 'kill $server 2> /dev/null' EXIT
scripted="--model_addr scripted --openai --api_key_addr $out/key.txt --base_url http://127.0.0.1:$port/v1"

begin "make personas and their conversations on two topics over the years (scripted server)"
# shellcheck disable=SC2086 (words)
run "$python" $build $scripted --step conversations

begin "make small talk (the demo's model)"
# shellcheck disable=SC2086 (words)
run "$python" $build --model_addr $chat --step small_talk --max_tokens 160 --max_model_len 2048 \
    --constrained_decoding always

begin "make questions about the conversations, and try to answer them without a history (scripted server)"
# shellcheck disable=SC2086 (words)
run "$python" $build $scripted --step questions

begin "assemble the benchmark's files, and check their validity"
# shellcheck disable=SC2086 (words)
run "$python" $build $scripted --step assemble --n_blocks 8 --tokenizer $chat
run "$python" utils/download_datasets.py --dataset PersonaMem-32k --source_dir $out --output_dir $data

begin "answer the first 40 questions without a history and with five messages (the demo's model)"
run "$python" retrieval/rank_dataset.py --model_name $encoder --unit message \
    --input_dataset_addr $data/PersonaMem_32k.json --output_dataset_addr $data/ranked.json --limit 40
for number in 0 5; do
    run "$python" baselines.py --model_addr $chat --inputs_addr $data/ranked.json --rag --num_contexts $number \
        --output_addr $out/rag_$number.json --max_model_len 4096 --max_tokens 24 --constrained_decoding always
done
run "$python" evaluate_responses.py --inputs_addr $data/ranked.json \
    --response_addr $out/rag_0.json $out/rag_5.json --score_addr $out/rag_0_scores.json $out/rag_5_scores.json
run "$python" utils/make_table.py --baseline "No history" \
    --system "No history" $out/rag_0_scores.json --system "Five messages" $out/rag_5_scores.json
printf '\nThe numbers show that the pipeline works: the answers to scripted questions cannot be found in the history.\n'
