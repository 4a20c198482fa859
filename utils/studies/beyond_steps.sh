# shellcheck shell=bash disable=SC2034,SC2046,SC2086,SC2154 # lists are words; studies and functions share variables
# The steps of the methods after PlanPers (docs/beyond_planpers.md), for one $category and one local $model.
#
#   N=16           samples per training question
#   ROUNDS=3       of sampling and training; the best one by validation score answers the test set
#   LIMIT=1000     use the first questions of each training set only (default: all)
#   QUESTIONS=1000 per round of reinforcement learning, which has no LIMIT: drawn at random, all before any is repeated
#   STRATEGY=direct   one verdict per training sample instead of one per aspect: cheaper, not the papers' (default: aspect)
#   LORA=16        rank of the adapters; for planner_rl also of the planner that it starts from
#   SAMPLE_FLAGS, LEARN_FLAGS   further flags of the commands that sample, and of utils/train_generator.py
#   PAPER='Qwen 2.5 7B'   the model with published numbers, which the table shows too (default: none)
#
#   $OUT/<model>/train/<category>/<method>/round_<n>/, and best, which links to the method's best policy
#   $OUT/ranked/<category>_train_round_<n>.json, the questions of a round of reinforcement learning
#   $OUT/<model>/train/<category>/rag/samples.json and their scores, which offline RL and DPO share in round 1
MODELS=${MODELS-Qwen/Qwen2.5-7B-Instruct} OPENAI_MODELS='' # what is trained must be here
source utils/studies/lampqa_steps.sh || exit 2
N=${N-16} ROUNDS=${ROUNDS-3} LIMIT=${LIMIT-} STRATEGY=${STRATEGY-aspect} LORA=${LORA-16}
QUESTIONS=${QUESTIONS-1000}

titles+=([offline_rl]="Offline RL" [dpo]=DPO [vac]=VAC [grasp]=GRASP [rubric_best]="Best of $N by the rubric")
titles+=([pr2]=PR2 [iap]=IAP [planner_rl]="PlanPers (planner by RL)")
from=train         # the split that is sampled and judged
per_update=32      # texts that an update of a training learns from
reward=()          # terms of utils/combine_scores.py; none: the judge's scores are the rewards
calls=samples.json # the file beside which the trace of the calls to learn from is

compare() { # STUDY METHOD...: train and answer by these methods, or by METHODS, and a table of them
    local study=$1 method split methods
    METHODS=${METHODS-${*:2}}
    name_methods "$known $trained rubric_best"
    for category in $CATEGORIES; do
        for split in train validation "$SPLIT"; do rank "$split"; done
        [[ " $METHODS " != *" rag_random "* ]] || rank_with_random_profile
        answers=()
        for model in $MODELS; do
            for method in "${methods[@]}"; do
                case $method in
                    planpers) train_once ;;
                    offline_rl | dpo) offline_rl "$method" ;;
                    vac | grasp | rubric_best | pr2 | iap | planner_rl) "$method" ;;
                    *_rl) own_rl "$method" ;;
                esac
                [ "$method" = rubric_best ] || answer "$method"
            done
        done
        judge
    done
    for model in $MODELS; do
        systems=() baselines=() spread=()
        for method in "${methods[@]}"; do
            if [ "$method" = rubric_best ]; then # it is made with one seed
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

train_once() {
    [ -n "${jobs[planner/$category]-}" ] || train
}

sample() { # NAME "WAITS" SAMPLES SCRIPT FLAGS...: answers to the questions of $from
    engine
    GPUS=$gpus step "$1" "ranked/${category}_$from $2" python "${@:4}" --num_generated_outputs "$3" \
        --inputs_addr "$OUT/ranked/${category}_$from.json" --output_addr "$OUT/$1.json" ${LIMIT:+--limit "$LIMIT"} \
        "${engine[@]}" ${SAMPLE_FLAGS-}
}

judge_samples() { # NAME: NAME_scores.json has the scores of all samples
    engine ${JUDGE_FLAGS-}
    GPUS=$gpus step "$1_scores" "$1" python evaluate_responses.py --evaluator_llm "$JUDGE" --strategy "$STRATEGY" \
        --samples all --inputs_addr "$DATA/${category}_${from%_round_*}.json" --allow_partial \
        --response_addr "$OUT/$1.json" --score_addr "$OUT/$1_scores.json" "${engine[@]}" ${JUDGE_FLAGS-}
}

choose() { # NAME FLAGS...: judge samples; NAME_best.json and NAME_worst.json are by question
    judge_samples "$1"
    draw "$1_best" "$1 $1_scores" python utils/select_responses.py --response_addr "$OUT/$1.json" \
        --score_addr "$OUT/$1_scores.json" --output_addr "$OUT/$1_best.json" "${@:2}"
}

learn() { # NAME "WAITS" MODEL FLAGS...: an adapter, from MODEL or the adapter MODEL
    training "$per_update" 1
    step "$1" "ranked/${category}_$from $2" "${training[@]}" utils/train_generator.py --model_addr "$3" --lora_rank "$LORA" \
        --inputs_addr "$OUT/ranked/${category}_$from.json" --output_dir "$OUT/$1" "${batch[@]}" "${@:4}" ${LEARN_FLAGS-}
}

validate() { # ROUND'S FOLDER METHOD: its policy's score on the validation set
    local flags by
    answering "$2" "$OUT/$1/policy/last"
    engine
    GPUS=$gpus step "$1/validation" "ranked/${category}_validation $1/policy" python "${flags[@]}" --model_addr "$by" \
        --inputs_addr "$OUT/ranked/${category}_validation.json" --output_addr "$OUT/$1/validation.json" \
        "${engine[@]}" $(answer_flags ${ANSWER_FLAGS-})
    engine ${JUDGE_FLAGS-}
    GPUS=$gpus step "$1/validation_scores" "$1/validation" python evaluate_responses.py --evaluator_llm "$JUDGE" \
        --inputs_addr "$DATA/${category}_validation.json" --response_addr "$OUT/$1/validation.json" \
        --score_addr "$OUT/$1/validation_scores.json" "${engine[@]}" ${JUDGE_FLAGS-}
    models+=("$OUT/$1/policy/last") scores+=("$OUT/$1/validation_scores.json") waits+=("$1/policy" "$1/validation_scores")
}

select_round() { # METHOD'S FOLDER: link the best policy
    draw "$1/best" "${waits[*]}" python utils/select_model.py --model_addr "${models[@]}" --score_addr "${scores[@]}" \
        --link_addr "$OUT/$1/best"
}

offline_rl() { # METHOD: sample, score, select, train (VAC's baseline); dpo learns pairs of the best and the worst
    local folder=${model##*/}/train/$category/$1 policy=$model before='' round name sampled models=() scores=() waits=() pairs=()
    for ((round = 1; round <= ROUNDS; round++)); do
        name=$folder/round_$round sampled=$folder/round_$round/samples
        [ "$round" -gt 1 ] || sampled=${model##*/}/train/$category/rag/samples # of the model that both begin with
        sample "$sampled" "$before" "$N" baselines.py --rag --model_addr "$policy" --temperature 1
        choose "$sampled" --worst_addr "$OUT/${sampled}_worst.json"
        [ "$1" = offline_rl ] || pairs=(--objective dpo --worst_addr "$OUT/${sampled}_worst.json")
        learn "$name/policy" "${sampled}_best $before" "$policy" --target_addr "$OUT/${sampled}_best.json" "${pairs[@]}"
        validate "$name" "$1"
        policy=$OUT/$name/policy/last before=$name/policy
    done
    select_round "$folder"
}

vac() { # a feedback model, which sees the narrative, and the policy are trained by turns
    local folder=${model##*/}/train/$category/vac policy=$model feedback=$model before='' round name models=() scores=() waits=()
    local method=(baselines.py --method vac --show_fields narrative --set feedback=feedback)
    for ((round = 1; round <= ROUNDS; round++)); do
        name=$folder/round_$round
        sample "$name/samples" "$before" "$N" "${method[@]}" --model_addr "$policy" --model feedback="$feedback"
        choose "$name/samples" --worst_addr "$OUT/$name/samples_worst.json"
        learn "$name/feedback" "$name/samples_best $before" "$feedback" --prompt feedback --target_addr "$OUT/$name/samples_best.json"
        feedback=$OUT/$name/feedback/last
        sample "$name/revisions" "$name/feedback $before" 1 "${method[@]}" --model_addr "$policy" --model feedback="$feedback"
        learn "$name/policy" "$name/revisions $before" "$policy" --target_addr "$OUT/$name/revisions.json"
        validate "$name" vac
        policy=$OUT/$name/policy/last before="$name/policy $name/feedback"
    done
    select_round "$folder"
}

grasp() { # distill a teacher that sees the rubric, on questions that it answers well
    local name=${model##*/}/train/$category/grasp/round_1 models=() scores=() waits=()
    sample "$name/teacher" "" 1 baselines.py --method teacher --show_fields rubric_aspects --model_addr "$model" \
        --temperature 0.1 --max_tokens 1024
    choose "$name/teacher" --min_score "${TAU-0.6}"
    learn "$name/policy" "$name/teacher_best" "$model" --objective distill --target_addr "$OUT/$name/teacher_best.json"
    validate "$name" grasp
    select_round "${name%/round_1}"
}

pr2() { # the policy decides what to search; the first sample of each question answers without a search
    local sampling=(--set bare=first --temperature 1 --top_p 0.95) learning=(--advantage pr2)
    reinforce pr2 "$model"
}

iap() { # the policy writes the intent before the answer, and is to answer otherwise than the untrained model
    local sampling=(--temperature 0.8 --top_p 0.95 --max_tokens 1024) learning=(--kl 0.01)
    local reward=(--contrast -0.1 --length_weight -0.01 --length_note intent --length_over 200)
    reinforce iap "$model"
}

combine() { # ROUND'S FOLDER: rewards of the scores and the terms in `reward` take the place of the verdicts
    local waits="$1/samples $1/samples_scores" terms=("${reward[@]}")
    if [[ " ${reward[*]} " == *" --contrast "* ]]; then # with the untrained model's answers
        sample "$1/plain" "" 1 baselines.py --rag --model_addr "$model"
        waits="$1/plain $waits" terms+=(--contrast_addr "$OUT/$1/plain.json")
    fi
    draw "$1/samples_rewards" "$waits" python utils/combine_scores.py \
        --response_addr "$OUT/$1/samples.json" --score_addr "$OUT/$1/samples_scores.json" \
        --output_addr "$OUT/$1/samples_rewards.json" "${terms[@]}"
}

planner_rl() { # the planner learns from the scores of the answers; the generator stays as it is
    local sampling=(--temperature 1) learning=(--role planner) calls=samples.json.plans.json
    train_once
    reinforce planner_rl "$OUT/planner/$category/best" "planner/$category"
}

own_rl() { # NAME_rl: the model of one role of a method of one's own learns
    local sampling=(--temperature 1) learning=(--role "$role") reward=(${REWARD-})
    reinforce "$1" "$model"
}

# reinforce METHOD POLICY ["WAITS"]: rounds of GRPO on $QUESTIONS each, a table of them, and a link to the best one. The
# caller sets `sampling` and `learning`, flags of the two commands, and perhaps `reward` and `calls`.
reinforce() {
    local folder=${model##*/}/train/$category/$1 policy=$2 before=${3-} round name flags by models=() scores=() waits=()
    local LIMIT=$QUESTIONS per_update=64 from judged rounds=() made=()
    for ((round = 1; round <= ROUNDS; round++)); do
        name=$folder/round_$round from=train_round_$round
        [ -n "${jobs[ranked/${category}_$from]-}" ] || draw "ranked/${category}_$from" "ranked/${category}_train" \
            python utils/draw_questions.py --input_dataset_addr "$OUT/ranked/${category}_train.json" \
            --questions_per_round "$QUESTIONS" --round "$round" --output_dataset_addr "$OUT/ranked/${category}_$from.json"
        answering "$1" "$policy"
        sample "$name/samples" "$before" "$N" "${flags[@]}" --model_addr "$by" --trace "${sampling[@]}"
        judge_samples "$name/samples"
        judged=$name/samples_scores
        [ -z "${reward[*]}" ] || { combine "$name" && judged=$name/samples_rewards; }
        learn "$name/policy" "$name/samples $judged $before" "$policy" --objective grpo \
            --trace_addr "$OUT/$name/$calls.trace.jsonl" --response_addr "$OUT/$name/samples.json" \
            --score_addr "$OUT/$judged.json" "${learning[@]}"
        validate "$name" "$1"
        rounds+=(--round_files "$OUT/$name/samples.json" "$OUT/$judged.json" "$OUT/$name/policy/last" "${scores[-1]}")
        made+=("$name/samples" "$judged" "$name/policy")
        policy=$OUT/$name/policy/last before=$name/policy
    done
    draw "$folder/rounds" "${waits[*]} ${made[*]}" python utils/rounds_table.py --output_addr "$OUT/$folder/rounds.md" "${rounds[@]}"
    select_round "$folder"
}

rubric_best() { # the upper bound: the best of N answers to the test questions by the judge and metric of the table
    local from=$SPLIT LIMIT='' STRATEGY=aspect name
    name=$(answer_name "$category" rubric 10 0)
    sample "$name" "" "$N" baselines.py --rag --model_addr "$model" --temperature 1
    choose "$name"
    answers+=("${name}_best")
}
