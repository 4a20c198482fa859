# shellcheck shell=bash disable=SC2034,SC2046,SC2086,SC2154 # lists are split into words; files share variables
# The steps of the methods after PlanPers (docs/beyond_planpers.md), for one $category and one local $model.
#
#   N=16           samples per training question
#   ROUNDS=3       rounds of sampling and training; the round with the best validation score answers the test set
#   GRASP_ROUNDS=8 rounds of GRASP; the last one answers the test set
#   LIMIT=1000     use only the first questions of each training set (default: all)
#   QUESTIONS=1000 training questions per round of reinforcement learning or distillation, instead of LIMIT: drawn at
#                  random, without repetition until all were drawn
#   STRATEGY=direct   one verdict per training sample instead of one per aspect: cheaper, but not as in the papers
#                  (default: aspect)
#   TABLE_JUDGE=MODEL   judge of the table, with TABLE_JUDGE_FLAGS (default: $JUDGE, which gives the rewards)
#   LORA=16        rank of the adapters; planner_rl starts from a planner, which must have this rank too
#   SAMPLE_FLAGS, LEARN_FLAGS   further flags of the commands that sample, and of utils/train_generator.py
#   PAPER='Qwen 2.5 7B'   also show the published numbers of this model in the table (default: none)
#
#   $OUT/<model>/train/<category>/<method>/round_<n>/, and best, which links to the method's best policy
#   $OUT/ranked/<category>_train_round_<n>.json, the questions of a round of reinforcement learning
#   $OUT/<model>/train/<category>/rag/samples.json and their scores, which offline RL and DPO share in round 1
MODELS=${MODELS-Qwen/Qwen2.5-7B-Instruct} OPENAI_MODELS='' # only local models can be trained
source utils/studies/lampqa_steps.sh || exit 2
N=${N-16} ROUNDS=${ROUNDS-3} GRASP_ROUNDS=${GRASP_ROUNDS-8} LIMIT=${LIMIT-} STRATEGY=${STRATEGY-aspect} LORA=${LORA-16}
QUESTIONS=${QUESTIONS-1000}

titles+=([offline_rl]="Offline RL" [dpo]=DPO [vac]=VAC [grasp]=GRASP [rubric_best]="Best of $N by the rubric")
titles+=([pr2]=PR2 [iap]=IAP [planner_rl]="PlanPers (planner by RL)" [ranker]="Best of $N by a ranker")
selected="ranker rubric_best" # they select among answers, with one seed, and train no policy
per_update=32 # texts per update of the weights, except in reinforcement learning

compare() { # STUDY METHOD...: train and answer with these methods, or with METHODS, and make a table
    local study=$1 method split table
    METHODS=${METHODS-${*:2}}
    name_methods "$known $trained $selected"
    for category in $CATEGORIES; do
        for split in train validation "$SPLIT"; do rank "$split"; done
        [[ " $METHODS " != *" rag_random "* ]] || rank_with_random_profile
        answers=()
        for model in $MODELS; do
            for method in "${methods[@]}"; do
                case $method in
                    planpers) train ;;
                    offline_rl | dpo) offline_rl "$method" ;;
                    vac | grasp | ranker | rubric_best | pr2 | iap | planner_rl) "$method" ;;
                    *_rl) reinforce "$method" "$model" "" "--temperature 1 --top_p 1" "--role $role" "${REWARD-}" ;; # rl.sh
                esac
                [[ " $selected " == *" $method "* ]] || answer "$method"
            done
        done
        judge
    done
    for model in $MODELS; do
        systems=() baselines=() spread=()
        for method in "${methods[@]}"; do
            if [[ " $selected " == *" $method "* ]]; then
                SEEDS=0 row "${titles[$method]}" "$method"
            else
                row "${titles[$method]-$method}" "$method"
            fi
        done
        table=${model##*/}/$SPLIT/$study$(judge_suffix)
        draw "$table" "${scored[*]}" python utils/make_table.py --output_addr "$OUT/$table.md" "${systems[@]}" \
            --baseline "${baselines[@]}" "${spread[@]}" ${PAPER:+--paper "$PAPER" --paper_table beyond}
    done
}

# In the functions below, SPLIT names the ranked questions: train, those of a round (train_round_1), or the test set.

sample() { # NAME "WAITS" SPLIT LIMIT SAMPLES SCRIPT FLAGS...: answer the first LIMIT questions (empty: all)
    local name=$1 waits=$2 split=$3 limit=$4 samples=$5
    [ -z "${jobs[$name]-}" ] || return 0 # methods share samples
    engine
    GPUS=$gpus step "$name" "ranked/${category}_$split $waits" python "${@:6}" --num_generated_outputs "$samples" \
        --inputs_addr "$OUT/ranked/${category}_$split.json" --output_addr "$OUT/$name.json" ${limit:+--limit "$limit"} \
        "${engine[@]}" ${SAMPLE_FLAGS-}
}

judge_samples() { # NAME SPLIT STRATEGY: write the scores of all samples into NAME_scores.json
    local name=$1 split=$2 strategy=$3
    [ -z "${jobs[${name}_scores]-}" ] || return 0
    engine ${JUDGE_FLAGS-}
    GPUS=$gpus step "${name}_scores" "$name" python evaluate_responses.py --evaluator_llm "$JUDGE" --strategy "$strategy" \
        --samples all --inputs_addr "$DATA/${category}_${split%_round_*}.json" --allow_partial \
        --response_addr "$OUT/$name.json" --score_addr "$OUT/${name}_scores.json" "${engine[@]}" ${JUDGE_FLAGS-}
}

choose() { # NAME SPLIT STRATEGY FLAGS...: judge samples, and write each question's best one into NAME_best.json
    local name=$1
    judge_samples "$name" "$2" "$3"
    draw "${name}_best" "$name ${name}_scores" python utils/select_responses.py --response_addr "$OUT/$name.json" \
        --score_addr "$OUT/${name}_scores.json" --output_addr "$OUT/${name}_best.json" "${@:4}"
}

learn() { # NAME "WAITS" SPLIT PER_UPDATE MODEL FLAGS...: train an adapter of MODEL, or train the adapter MODEL further
    local name=$1 waits=$2 split=$3
    training "$4" 1
    step "$name" "ranked/${category}_$split $waits" "${training[@]}" utils/train_generator.py --model_addr "$5" \
        --lora_rank "$LORA" --inputs_addr "$OUT/ranked/${category}_$split.json" --output_dir "$OUT/$name" \
        "${batch[@]}" "${@:6}" ${LEARN_FLAGS-}
}

validate() { # FOLDER METHOD: score the policy of the round in this folder on the validation set
    local round=$1
    answering "$2" "$OUT/$round/policy/last"
    engine
    GPUS=$gpus step "$round/validation" "ranked/${category}_validation $round/policy" python "${flags[@]}" \
        --model_addr "$by" --inputs_addr "$OUT/ranked/${category}_validation.json" \
        --output_addr "$OUT/$round/validation.json" "${engine[@]}" $(answer_flags ${ANSWER_FLAGS-})
    engine ${JUDGE_FLAGS-}
    GPUS=$gpus step "$round/validation_scores" "$round/validation" python evaluate_responses.py --evaluator_llm "$JUDGE" \
        --inputs_addr "$DATA/${category}_validation.json" --response_addr "$OUT/$round/validation.json" \
        --score_addr "$OUT/$round/validation_scores.json" "${engine[@]}" ${JUDGE_FLAGS-}
}

select_round() { # FOLDER ROUNDS: link the policy with the best validation score
    local folder=$1 round models=() scores=() waits=()
    for ((round = 1; round <= $2; round++)); do
        models+=("$OUT/$folder/round_$round/policy/last") scores+=("$OUT/$folder/round_$round/validation_scores.json")
        waits+=("$folder/round_$round/policy" "$folder/round_$round/validation_scores")
    done
    draw "$folder/best" "${waits[*]}" python utils/select_model.py --model_addr "${models[@]}" --score_addr "${scores[@]}" \
        --link_addr "$OUT/$folder/best"
}

offline_rl() { # METHOD: sample, score, select, train (VAC's baseline); dpo learns pairs of the best and the worst
    local method=$1 folder=${model##*/}/train/$category/$1 policy=$model before='' round name sampled pairs=()
    for ((round = 1; round <= ROUNDS; round++)); do
        name=$folder/round_$round sampled=$folder/round_$round/samples
        # Offline RL and DPO start from the same model, so they share the samples of round 1.
        [ "$round" -gt 1 ] || sampled=${model##*/}/train/$category/rag/samples
        sample "$sampled" "$before" train "$LIMIT" "$N" baselines.py --rag --model_addr "$policy" --temperature 1
        choose "$sampled" train "$STRATEGY" --worst_addr "$OUT/${sampled}_worst.json"
        [ "$method" = offline_rl ] || pairs=(--objective dpo --worst_addr "$OUT/${sampled}_worst.json")
        learn "$name/policy" "${sampled}_best $before" train "$per_update" "$policy" \
            --target_addr "$OUT/${sampled}_best.json" "${pairs[@]}"
        validate "$name" "$method"
        policy=$OUT/$name/policy/last before=$name/policy
    done
    select_round "$folder" "$ROUNDS"
}

vac() { # train in turns a feedback model, which sees the narrative, and the policy
    local folder=${model##*/}/train/$category/vac policy=$model feedback=$model before='' round name
    local method=(baselines.py --method vac --show_fields narrative --set feedback=feedback)
    for ((round = 1; round <= ROUNDS; round++)); do
        name=$folder/round_$round
        sample "$name/samples" "$before" train "$LIMIT" "$N" "${method[@]}" --model_addr "$policy" --model feedback="$feedback"
        choose "$name/samples" train "$STRATEGY" --worst_addr "$OUT/$name/samples_worst.json"
        learn "$name/feedback" "$name/samples_best $before" train "$per_update" "$feedback" --prompt feedback \
            --target_addr "$OUT/$name/samples_best.json"
        feedback=$OUT/$name/feedback/last
        sample "$name/revisions" "$name/feedback $before" train "$LIMIT" 1 "${method[@]}" --model_addr "$policy" \
            --model feedback="$feedback"
        learn "$name/policy" "$name/revisions $before" train "$per_update" "$policy" --target_addr "$OUT/$name/revisions.json"
        validate "$name" vac
        policy=$OUT/$name/policy/last before="$name/policy $name/feedback"
    done
    select_round "$folder" "$ROUNDS"
}

grasp() { # distill a teacher that sees the rubric into its student, by the student's samples
    local folder=${model##*/}/train/$category/grasp policy=$model before='' round name split
    for ((round = 1; round <= GRASP_ROUNDS; round++)); do
        name=$folder/round_$round split=train_round_$round
        draw_round "$round"
        sample "$name/teacher" "" "$split" "$QUESTIONS" 1 baselines.py --method teacher --show_fields rubric_aspects \
            --model_addr "$model" --temperature 0.1 --max_tokens 1024
        choose "$name/teacher" "$split" "$STRATEGY" --min_score "${TAU-0.6}"
        # Keep the model's raw text: one per question, even if no answer can be parsed from it.
        sample "$name/samples" "$before" "$split" "$QUESTIONS" 1 baselines.py --rag --model_addr "$policy" \
            --temperature 1 --top_p 1 --max_tokens 512 --max_retries 0 --constrained_decoding never
        learn "$name/policy" "$name/teacher_best $name/samples $before" "$split" "$per_update" "$policy" \
            --objective distill --target_addr "$OUT/$name/teacher_best.json" --response_addr "$OUT/$name/samples.json"
        policy=$OUT/$name/policy/last before=$name/policy
    done
    validate "$name" grasp
    draw "$folder/best" "$name/policy $name/validation_scores" python utils/select_model.py --model_addr "$policy" \
        --score_addr "$OUT/$name/validation_scores.json" --link_addr "$OUT/$folder/best"
}

draw_round() { # ROUND: draw the questions of a round from a category's training set
    [ -n "${jobs[ranked/${category}_train_round_$1]-}" ] || draw "ranked/${category}_train_round_$1" \
        "ranked/${category}_train" python utils/draw_questions.py --questions_per_round "$QUESTIONS" --round "$1" \
        --input_dataset_addr "$OUT/ranked/${category}_train.json" \
        --output_dataset_addr "$OUT/ranked/${category}_train_round_$1.json"
}

pr2() { # the policy decides what to search; the first sample of each question answers without a search
    reinforce pr2 "$model" "" "--set bare=first --temperature 1 --top_p 0.95" "--advantage pr2"
}

iap() { # the policy writes the intent before the answer, and learns to answer differently from the untrained model
    reinforce iap "$model" "" "--temperature 0.8 --top_p 0.95 --max_tokens 1024" "--kl 0.01" \
        "--contrast -0.1 --length_weight -0.01 --length_note intent --length_over 200"
}

planner_rl() { # the planner learns from the scores of the answers; the generator does not change
    train
    reinforce planner_rl "$OUT/planner/$category/best" "planner/$category" "--temperature 1 --top_p 1" "--role planner" "" \
        samples.json.plans.json
}

# reinforce METHOD POLICY "WAITS" "SAMPLING" "LEARNING" ["REWARD" [CALLS]]: rounds of GRPO on $QUESTIONS questions each, a
# table of the rounds, and a link to the best policy. SAMPLING and LEARNING are flags for sampling and training. REWARD is
# flags of utils/combine_scores.py; if it is empty, the judge's scores are the rewards. The policy learns from the calls in
# the trace beside the file CALLS (samples.json).
reinforce() {
    local method=$1 policy=$2 before=$3 sampling=$4 learning=$5 reward=${6-} calls=${7-samples.json}
    local folder=${model##*/}/train/$category/$1 round name split judged rounds=() waits=()
    for ((round = 1; round <= ROUNDS; round++)); do
        name=$folder/round_$round split=train_round_$round judged=$folder/round_$round/samples_scores
        draw_round "$round"
        answering "$method" "$policy"
        sample "$name/samples" "$before" "$split" "$QUESTIONS" "$N" "${flags[@]}" --model_addr "$by" --trace $sampling
        judge_samples "$name/samples" "$split" "$STRATEGY"
        [ -z "$reward" ] || { combine "$name" "$split" "$reward" && judged=$name/samples_rewards; }
        learn "$name/policy" "$name/samples $judged $before" "$split" 64 "$policy" --objective grpo \
            --trace_addr "$OUT/$name/$calls.trace.jsonl" --response_addr "$OUT/$name/samples.json" \
            --score_addr "$OUT/$judged.json" $learning
        validate "$name" "$method"
        rounds+=(--round_files "$OUT/$name/samples.json" "$OUT/$judged.json" "$OUT/$name/policy/last"
            "$OUT/$name/validation_scores.json")
        waits+=("$name/samples" "$judged" "$name/policy" "$name/validation_scores")
        policy=$OUT/$name/policy/last before=$name/policy
    done
    draw "$folder/rounds" "${waits[*]}" python utils/rounds_table.py --output_addr "$OUT/$folder/rounds.md" "${rounds[@]}"
    select_round "$folder" "$ROUNDS"
}

combine() { # FOLDER SPLIT "REWARD": combine the scores of the round in this folder into rewards, with these flags
    local round=$1 split=$2 reward=$3 waits="$1/samples $1/samples_scores" plain=()
    if [[ " $reward " == *" --contrast "* ]]; then # compare with the untrained model's answers
        sample "$round/plain" "" "$split" "$QUESTIONS" 1 baselines.py --rag --model_addr "$model"
        waits="$round/plain $waits" plain=(--contrast_addr "$OUT/$round/plain.json")
    fi
    draw "$round/samples_rewards" "$waits" python utils/combine_scores.py \
        --response_addr "$OUT/$round/samples.json" --score_addr "$OUT/$round/samples_scores.json" \
        --output_addr "$OUT/$round/samples_rewards.json" $reward "${plain[@]}"
}

embed() { # NAME SPLIT: write the hidden states of answers, questions and posts into NAME_states.safetensors
    engine
    GPUS=$gpus step "$1_states" "ranked/${category}_$2 $1" python utils/embed_responses.py --model_addr "$model" \
        --inputs_addr "$OUT/ranked/${category}_$2.json" --response_addr "$OUT/$1.json" \
        --output_addr "$OUT/$1_states.safetensors" "${engine[@]}"
}

ranker() { # choose among the N answers of rubric_best by a ranker trained on offline_rl's samples of round 1
    local name ranker=${model##*/}/train/$category/ranker from=${model##*/}/train/$category/rag/samples
    sample "$from" "" train "$LIMIT" "$N" baselines.py --rag --model_addr "$model" --temperature 1
    judge_samples "$from" train "$STRATEGY"
    embed "$from" train
    draw "$ranker" "$from ${from}_scores ${from}_states" python utils/train_ranker.py --response_addr "$OUT/$from.json" \
        --score_addr "$OUT/${from}_scores.json" --states_addr "$OUT/${from}_states.safetensors" --output_dir "$OUT/$ranker"
    name=$(answer_name "$category" rubric 10 0)
    sample "$name" "" "$SPLIT" "" "$N" baselines.py --rag --model_addr "$model" --temperature 1
    embed "$name" "$SPLIT"
    answers+=("$(answer_name "$category" ranker 10 0)")
    draw "${answers[-1]}" "$ranker $name ${name}_states" python utils/select_responses.py --response_addr "$OUT/$name.json" \
        --ranker "$OUT/$ranker" "$OUT/${name}_states.safetensors" --output_addr "$OUT/${answers[-1]}.json"
}

rubric_best() { # the upper bound: the best of N answers to the test questions, by the judge and metric of the table
    local name
    name=$(answer_name "$category" rubric 10 0)
    sample "$name" "" "$SPLIT" "" "$N" baselines.py --rag --model_addr "$model" --temperature 1
    JUDGE=${TABLE_JUDGE-$JUDGE} JUDGE_FLAGS=$(table_judge_flags) choose "$name" "$SPLIT" aspect
    answers+=("${name}_best")
}
