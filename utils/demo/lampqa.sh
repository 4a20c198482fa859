#!/bin/sh
# The whole pipeline on the sample data with small real models: rank, answer, train a planner, plan and answer, judge,
# make tables. Run by `make demo`.
# Each command is printed before it runs, or after it ran if two run side by side. A second run skips finished outputs.
# The first table comes as soon as two systems are judged, the full table at the end.
set -eu
num_stages=5
. utils/demo/stages.sh
sample=tests/data/mini_lampqa
data=$sample/test.json
out=${DEMO_OUT:-demo/output}
# The demo's model does not benefit from longer answers, and rarely writes JSON without constrained decoding.
limits="--max_tokens 64 --constrained_decoding always"

# Judge the answers of these systems (files in $out, without .json). The judge is loaded once.
judge() {
    answers= scores=
    for system in "$@"; do
        answers="$answers $out/$system.json"
        scores="$scores $out/${system}_scores.json"
    done
    # shellcheck disable=SC2086 (words)
    run "$python" evaluate_responses.py --evaluator_llm $chat --inputs_addr $data --response_addr $answers \
        --score_addr $scores --max_tokens 16 --constrained_decoding always --overwrite
}

printf 'The whole pipeline on %d questions with small models: about 4 minutes on two cores, longer on old machines.\n' \
    "$(grep -c '"question":' $data)"
printf 'The first table comes after 2 minutes. To resume an interrupted run: make demo\n'

begin "rank each user's earlier questions by similarity to the new question; as a control, another user's"
run "$python" retrieval/rank_dataset.py --model_name $encoder --input_dataset_addr $data \
    --output_dataset_addr $out/test_ranked.json --overwrite
run "$python" retrieval/rank_dataset.py --model_name $encoder --input_dataset_addr $data --other_profile random --seed 0 \
    --output_dataset_addr $out/test_random_ranked.json --overwrite

answer_with_rag() {
    run "$python" baselines.py --model_addr $chat --rag --num_contexts 10 $limits --overwrite \
        --inputs_addr $out/test_ranked.json $out/test_random_ranked.json \
        --output_addr $out/rag.json $out/rag_random.json
}

begin "answer without the profile, and with its ten best posts (RAG): the asker's and another user's"
aside answer_with_rag
run "$python" baselines.py --model_addr $chat --inputs_addr $data \
    --output_addr $out/no_personalization.json $limits --overwrite
together

begin "judge how well each answer covers what its asker wanted"
judge no_personalization rag
run "$python" utils/make_table.py \
    --system "No personalization" $out/no_personalization_scores.json \
    --system "RAG (asker's profile)" $out/rag_scores.json \
    --output_addr $out/first_table.md --overwrite
printf '\n'
cat $out/first_table.md

# Another user's profile shows whether the asker's own profile helps; gold plans show how much correct plans help.
controls() {
    run "$python" planpers.py --model_addr $chat --gold_plan --inputs_addr $out/test_ranked.json \
        --output_addr $out/planpers_gold.json --num_contexts 2 $limits --overwrite
    judge rag_random planpers_gold
}

begin "PlanPers: train a planner, plan and answer; meanwhile, answer with gold plans"
aside controls
for split in train validation; do
    run "$python" retrieval/rank_dataset.py --model_name $encoder --input_dataset_addr $sample/$split.json \
        --output_dataset_addr $out/${split}_ranked.json --overwrite
done
run "$python" train_planner.py --model_addr $chat --inputs_addr $out/train_ranked.json \
    --validation_addr $out/validation_ranked.json --output_dir $out/planner --num_contexts 2 --max_steps 4 \
    --save_steps 2 --gradient_accumulation_steps 1 --learning_rate 3e-3 --eval_generate 1 \
    --no-gradient_checkpointing --overwrite
run "$python" utils/make_figures.py --figure training --training_dir $out/planner --output_addr $out/planner/training
run "$python" planpers.py --model_addr $chat --planner_model $out/planner/best \
    --inputs_addr $out/test_ranked.json --output_addr $out/planpers.json --num_contexts 2 $limits \
    --max_tokens_plan 24 --max_retries 0 --overwrite
together

begin "judge the remaining answers, and make tables, figures and a report"
judge planpers

printf '\nThree answers with their judged aspects (models this small answer and judge badly):\n'
run "$python" utils/show_answers.py --inputs_addr $data --num_questions 3 \
    --response_addr $out/rag.json --score_addr $out/rag_scores.json

run "$python" utils/make_table.py \
    --system "No personalization" $out/no_personalization_scores.json \
    --system "RAG (random profile)" $out/rag_random_scores.json \
    --system "RAG (asker's profile)" $out/rag_scores.json \
    --system "PlanPers" $out/planpers_scores.json \
    --system "PlanPers, gold plans" $out/planpers_gold_scores.json \
    --output_addr $out/table.md --overwrite
run "$python" utils/make_figures.py --figure 3 \
    --system "PlanPers" $out/planpers_scores.json \
    --system "PlanPers, gold plans" $out/planpers_gold_scores.json \
    --output_addr $out/figure3 --overwrite
run "$python" utils/report.py --inputs_addr $out/test_ranked.json $out/test_random_ranked.json \
    --system "No personalization" $out/no_personalization.json $out/no_personalization_scores.json \
    --system "RAG (random profile)" $out/rag_random.json $out/rag_random_scores.json \
    --system "RAG (asker's profile)" $out/rag.json $out/rag_scores.json \
    --system "PlanPers" $out/planpers.json $out/planpers_scores.json $out/planpers.json.plans.json \
    --system "PlanPers, gold plans" $out/planpers_gold.json $out/planpers_gold_scores.json \
    --output_addr $out/report.html --overwrite

printf '\n'
cat $out/table.md
printf '\nThe table is %s, the training curve %s,\nthe figure of gold plans %s. The report has every answer and verdict: %s.\n' \
    $out/table.md $out/planner/training.png $out/figure3.png $out/report.html
printf 'The numbers show that the pipeline works, not how good a method is.\n'
