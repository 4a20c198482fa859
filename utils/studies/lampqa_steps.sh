# shellcheck shell=bash disable=SC2034,SC2046,SC2086,SC2154,SC2206,SC2207 # lists are split into words; files share variables
# The steps of LaMP-QA's studies, and their variables with the paper's values. A study loops over $category and $model.
#
# Output files:
#   $OUT/ranked/<category>_<split>.json, and <category>_<split>_random.json with other users' profiles
#   $OUT/planner/<category>/best
#   $OUT/<model>/<split>/<category>/<method>.json and <method>_scores.json: the method ends in _k4 with 4 posts
#   instead of 10, and in _seed1 with seed 1 instead of 0; the scores end in _<judge> with a judge other than the
#   paper's, and in _direct if TABLE_STRATEGY is direct: one verdict per answer instead of one per aspect
#   $OUT/<model>/<split>/<study>.md, or .png and .pdf
DATA=${DATA-data} OUT=${OUT-output/lampqa} SPLIT=${SPLIT-test}
CATEGORIES=${CATEGORIES-Art_and_Entertainment Lifestyle_and_Personal_Development Society_and_Culture}
MODELS=${MODELS-google/gemma-2-9b-it Qwen/Qwen2.5-7B-Instruct}
OPENAI_MODELS=${OPENAI_MODELS-gpt-4o-mini} KEY=${KEY-} # models behind an API, and a file with its key
PLANNER_BASE=${PLANNER_BASE-Qwen/Qwen2.5-7B-Instruct}
ENCODER=${ENCODER-facebook/contriever-msmarco}
PAPER_JUDGE=Qwen/Qwen2.5-32B-Instruct
JUDGE=${JUDGE-$PAPER_JUDGE} TABLE_STRATEGY=${TABLE_STRATEGY-aspect} SEEDS=${SEEDS-0}
source utils/studies/steps.sh
check_models
answers=() scored=() systems=() baselines=() spread=()
declare -A titles=([none]="No personalization" [rag_random]="RAG (random profile)" [rag]="RAG (asker's profile)"
    [planpers]=PlanPers [planpers_gold]="PlanPers, gold plans" [best_of_n]="Best of 8 by a blind judge"
    [pathways]="Pathways of Thoughts" [search_then_answer]="PR2, untrained" [intent]="IAP, untrained")
known="none rag_random rag planpers planpers_gold best_of_n pathways search_then_answer intent" # allowed in METHODS
role=generator # the role in the user's own method whose model rl.sh trains
trained="offline_rl dpo vac grasp pr2 iap planner_rl" # also allowed in studies that train (beyond_steps.sh)

rank() { # NAME ["NAMES" FLAGS...]: rank the profiles of a split; NAME is the split, or the split followed by _random
    [ -z "${jobs[ranked/${category}_$1]-}" ] || return 0
    step "ranked/${category}_$1" "${2-}" python retrieval/rank_dataset.py --model_name "$ENCODER" "${@:3}" \
        --input_dataset_addr "$DATA/${category}_${1%_random}.json" \
        --output_dataset_addr "$OUT/ranked/${category}_$1.json" ${RANK_FLAGS-}
}

rank_with_random_profile() { # rank the asker's own profiles, and as a control those of other users
    rank "$SPLIT"
    rank "${SPLIT}_random" "" --other_profile random --seed 0
}

train() { # rank the splits that a category's planner reads, and train it; $SPLIT is already ranked
    local split ranked=ranked/$category
    [ -z "${jobs[planner/$category]-}" ] || return 0
    for split in train validation; do
        [ "$split" = "$SPLIT" ] || rank "$split"
    done
    training 32 1
    step "planner/$category" "${ranked}_train ${ranked}_validation" "${training[@]}" train_planner.py \
        --model_addr "$PLANNER_BASE" --inputs_addr "$OUT/${ranked}_train.json" \
        --validation_addr "$OUT/${ranked}_validation.json" --output_dir "$OUT/planner/$category" "${batch[@]}" ${TRAIN_FLAGS-}
}

answer() { # METHOD [POSTS]: make an output for each seed
    local posts=${2-10} ranked=ranked/${category}_$SPLIT planner=planner/$category by=$model waits flags seed name policy
    access "$model"
    case $1 in
        none) waits="" flags=(baselines.py --inputs_addr "$DATA/${category}_$SPLIT.json") ;;
        rag_random) waits=${ranked}_random flags=(baselines.py --rag --inputs_addr "$OUT/${ranked}_random.json") ;;
        rag) waits=$ranked flags=(baselines.py --rag --inputs_addr "$OUT/$ranked.json") ;;
        planpers_gold) waits=$ranked flags=(planpers.py --gold_plan --rag --inputs_addr "$OUT/$ranked.json") ;;
        planpers)
            # A local planner needs GPUs, even if the generator is behind an API.
            [[ " ${PLANPERS_FLAGS-} " == *" --planner_base_url"* ]] || engine
            waits="$ranked $planner"
            flags=(planpers.py --planner_model "$OUT/$planner/best" --rag --inputs_addr "$OUT/$ranked.json"
                $(answer_flags ${PLANPERS_FLAGS-}))
            ;;
        best_of_n | pathways | search_then_answer | intent)
            waits=$ranked flags=(baselines.py --method "$1" --inputs_addr "$OUT/$ranked.json")
            ;;
        "${own[$1]+$1}")
            own_method "${own[$1]}" "$model"
            waits=$ranked flags+=(--inputs_addr "$OUT/$ranked.json")
            ;;
        *) # a policy trained by beyond_steps.sh
            policy=${model##*/}/train/$category/$1/best waits="$ranked $policy"
            answering "$1" "$OUT/$policy"
            flags+=(--inputs_addr "$OUT/$ranked.json")
            ;;
    esac
    [ "$1" = none ] || flags+=(--num_contexts "$posts")
    for seed in $SEEDS; do
        name=$(answer_name "$category" "$1" "$posts" "$seed")
        GPUS=$gpus step "$name" "$waits" python "${flags[@]}" --model_addr "$by" --output_addr "$OUT/$name.json" \
            --seed "$seed" "${api[@]}" "${engine[@]}" $(answer_flags ${ANSWER_FLAGS-})
        answers+=("$name")
    done
}

answering() { # METHOD POLICY: set `flags`, and `by` to the generator, for answers with a policy trained by beyond_steps.sh
    flags=(baselines.py --rag) by=$2
    case $1 in
        pr2) flags=(baselines.py --method search_then_answer) ;;
        iap) flags=(baselines.py --method intent) ;;
        planner_rl) flags=(planpers.py --rag --planner_model "$2") by=$model ;; # the generator is not trained
        *_rl) [ -z "${own[${1%_rl}]-}" ] || own_method "${own[${1%_rl}]}" "$2" ;; # rl.sh
    esac
}

own_method() { # FILE POLICY: set `flags` and `by` for the user's own method, whose $role is the model POLICY
    flags=(baselines.py --method "$1" ${METHOD_FLAGS-}) by=$2
    if [ "$role" != generator ]; then
        flags+=(--model "$role=$2") by=$model
    fi
}

answer_name() { # CATEGORY METHOD POSTS SEED: print the name of an output, without $OUT and .json
    local stem=$2
    [ "$3" = 10 ] || stem+=_k$3
    [ "$4" = 0 ] || stem+=_seed$4
    echo "${model##*/}/$SPLIT/$1/$stem"
}

judge() { # judge all `answers` of a category in one command, which loads the table's judge once
    local name
    name=scores/${category}_$SPLIT$(judge_suffix)
    engine $(table_judge_flags)
    GPUS=$gpus step "$name" "${answers[*]}" python evaluate_responses.py --strategy "$TABLE_STRATEGY" \
        --evaluator_llm "${TABLE_JUDGE-$JUDGE}" --inputs_addr "$DATA/${category}_$SPLIT.json" \
        "${engine[@]}" $(table_judge_flags) \
        --response_addr $(printf "$OUT/%s.json " "${answers[@]}") \
        --score_addr $(printf "$OUT/%s_scores$(judge_suffix).json " "${answers[@]}")
    scored+=("$name")
}

table_judge_flags() { # print the flags of the table's judge: JUDGE_FLAGS apply only to $JUDGE
    if [ -n "${TABLE_JUDGE-}" ]; then echo "${TABLE_JUDGE_FLAGS-}"; else echo "${JUDGE_FLAGS-}"; fi
}

judge_suffix() {
    local judge=${TABLE_JUDGE-$JUDGE}
    [ "${judge##*/}" = "${PAPER_JUDGE##*/}" ] || printf "_%s" "${judge##*/}"
    [ "$TABLE_STRATEGY" = aspect ] || printf "_%s" "$TABLE_STRATEGY"
}

score_files() { # METHOD POSTS SEED: print the score files of $model, one for each category
    local name
    for name in $CATEGORIES; do
        echo "$OUT/$(answer_name "$name" "$@")_scores$(judge_suffix).json"
    done
}

row() { # TITLE METHOD: add a row for $model to the table; with several seeds, one row each and one for their spread
    local seed title titles=()
    for seed in $SEEDS; do
        title=$1
        [[ $SEEDS != *" "* ]] || title+=", seed $seed"
        titles+=("$title")
        systems+=(--system "$title" $(score_files "$2" 10 "$seed"))
        [[ $2 != none && $2 != rag* ]] || baselines+=("$title")
    done
    [[ $SEEDS != *" "* ]] || spread+=(--seeds "$1" "${titles[@]}")
}
