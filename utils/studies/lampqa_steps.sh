# shellcheck shell=bash disable=SC2034,SC2046,SC2086,SC2154,SC2206,SC2207 # lists are words; studies and functions share variables
# The steps of LaMP-QA's studies, and their variables with the paper's values. A study loops over $category and $model.
#
#   $OUT/ranked/<category>_<split>.json, and _random.json with another user's profile
#   $OUT/planner/<category>/best
#   $OUT/<model>/<split>/<category>/<method>.json and <method>_scores.json: another number of posts than 10 adds _k4 to the
#   method, another seed than 0 _seed1, another judge than the paper's _<judge> to the scores
#   $OUT/<model>/<split>/<study>.md, or .png and .pdf
DATA=${DATA-data} OUT=${OUT-output/lampqa} SPLIT=${SPLIT-test}
CATEGORIES=${CATEGORIES-Art_and_Entertainment Lifestyle_and_Personal_Development Society_and_Culture}
MODELS=${MODELS-google/gemma-2-9b-it Qwen/Qwen2.5-7B-Instruct}
OPENAI_MODELS=${OPENAI_MODELS-gpt-4o-mini} KEY=${KEY-} # behind an API; the file of its key (default: OPENAI_API_KEY)
PLANNER_BASE=${PLANNER_BASE-Qwen/Qwen2.5-7B-Instruct}
ENCODER=${ENCODER-facebook/contriever-msmarco}
PAPER_JUDGE=Qwen/Qwen2.5-32B-Instruct
JUDGE=${JUDGE-$PAPER_JUDGE} SEEDS=${SEEDS-0}
source utils/studies/steps.sh
check_models
answers=() scored=() systems=() baselines=() spread=()
declare -A titles=([none]="No personalization" [rag_random]="RAG (random profile)" [rag]="RAG (asker's profile)"
    [planpers]=PlanPers [planpers_gold]="PlanPers, gold plans" [best_of_n]="Best of 8 by a blind judge"
    [pathways]="Pathways of Thoughts" [search_then_answer]="PR2, untrained" [intent]="IAP, untrained")
known="none rag_random rag planpers planpers_gold best_of_n pathways search_then_answer intent" # names of METHODS
role=generator # of a method of one's own, whose model rl.sh trains
trained="offline_rl dpo vac grasp pr2 iap planner_rl" # further ones, in the studies that train (beyond_steps.sh)

rank() { # NAME ["NAMES" FLAGS...]: the profiles of a split; NAME is the split, or the split and _random
    [ -z "${jobs[ranked/${category}_$1]-}" ] || return 0
    step "ranked/${category}_$1" "${2-}" python retrieval/rank_dataset.py --model_name "$ENCODER" "${@:3}" \
        --input_dataset_addr "$DATA/${category}_${1%_random}.json" \
        --output_dataset_addr "$OUT/ranked/${category}_$1.json" ${RANK_FLAGS-}
}

rank_with_random_profile() { # also the control
    rank "$SPLIT"
    rank "${SPLIT}_random" "" --random_profile --seed 0
}

train() { # the planner of a category, with what it reads; $SPLIT is ranked already
    local split ranked=ranked/$category
    for split in train validation; do
        [ "$split" = "$SPLIT" ] || rank "$split"
    done
    training 32 1
    step "planner/$category" "${ranked}_train ${ranked}_validation" "${training[@]}" train_planner.py \
        --model_addr "$PLANNER_BASE" --inputs_addr "$OUT/${ranked}_train.json" \
        --validation_addr "$OUT/${ranked}_validation.json" --output_dir "$OUT/planner/$category" "${batch[@]}" ${TRAIN_FLAGS-}
}

answer() { # METHOD [POSTS]: an output for each seed
    local posts=${2-10} ranked=ranked/${category}_$SPLIT planner=planner/$category by=$model waits flags seed name policy
    access "$model"
    case $1 in
        none) waits="" flags=(baselines.py --inputs_addr "$DATA/${category}_$SPLIT.json") ;;
        rag_random) waits=${ranked}_random flags=(baselines.py --rag --inputs_addr "$OUT/${ranked}_random.json") ;;
        rag) waits=$ranked flags=(baselines.py --rag --inputs_addr "$OUT/$ranked.json") ;;
        planpers_gold) waits=$ranked flags=(planpers.py --gold_plan --rag --inputs_addr "$OUT/$ranked.json") ;;
        planpers)
            # A planner on this machine needs its GPUs, even if the generator is behind an API.
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
        *) # the policy that a study in beyond_steps.sh trained
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

answering() { # METHOD POLICY: sets `flags` and the model `by` which a policy that beyond_steps.sh trains answers
    flags=(baselines.py --rag) by=$2
    case $1 in
        pr2) flags=(baselines.py --method search_then_answer) ;;
        iap) flags=(baselines.py --method intent) ;;
        planner_rl) flags=(planpers.py --rag --planner_model "$2") by=$model ;; # the generator stays as it is
        *_rl) [ -z "${own[${1%_rl}]-}" ] || own_method "${own[${1%_rl}]}" "$2" ;; # rl.sh
    esac
}

own_method() { # FILE POLICY: sets `flags` and `by` for a method of one's own, with the model POLICY in its $role
    flags=(baselines.py --method "$1" ${METHOD_FLAGS-}) by=$2
    if [ "$role" != generator ]; then
        flags+=(--model "$role=$2") by=$model
    fi
}

answer_name() { # CATEGORY METHOD POSTS SEED: without $OUT and .json
    local stem=$2
    [ "$3" = 10 ] || stem+=_k$3
    [ "$4" = 0 ] || stem+=_seed$4
    echo "${model##*/}/$SPLIT/$1/$stem"
}

judge() { # all `answers` to a category, in one load of $JUDGE
    local name
    name=scores/${category}_$SPLIT$(judge_suffix)
    engine ${JUDGE_FLAGS-}
    GPUS=$gpus step "$name" "${answers[*]}" python evaluate_responses.py --evaluator_llm "$JUDGE" \
        --inputs_addr "$DATA/${category}_$SPLIT.json" "${engine[@]}" ${JUDGE_FLAGS-} \
        --response_addr $(printf "$OUT/%s.json " "${answers[@]}") \
        --score_addr $(printf "$OUT/%s_scores$(judge_suffix).json " "${answers[@]}")
    scored+=("$name")
}

judge_suffix() {
    [ "${JUDGE##*/}" = "${PAPER_JUDGE##*/}" ] || echo "_${JUDGE##*/}"
}

score_files() { # METHOD POSTS SEED: of $model, one for each category
    local name
    for name in $CATEGORIES; do
        echo "$OUT/$(answer_name "$name" "$@")_scores$(judge_suffix).json"
    done
}

row() { # TITLE METHOD: of $model in a table; with several seeds a row for each, and one for their spread
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
