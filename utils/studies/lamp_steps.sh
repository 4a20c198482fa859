# shellcheck shell=bash disable=SC2034,SC2086,SC2154,SC2206 # lists are split into words; files share variables
# The steps of LaMP's and LongLaMP's studies, and their variables. A study loops over $model, $setting and $task.
# Output files:
#   $OUT/ranked/<task>_<setting>_<split>_by_<ranker>.json
#   $OUT/<model>/<setting>_<split>/<task>/<method>.json and <method>_scores_<metric>.json: the method
#   ends in _k4 with 4 items in the prompt, and in _seed1 with seed 1 instead of 0
#   $OUT/<model>/<setting>_<split>/<study>.md
DATA=${DATA-data}
TASKS=${TASKS-LaMP-1 LaMP-2 LaMP-3 LaMP-4 LaMP-5 LaMP-6 LaMP-7}
SETTINGS=${SETTINGS-user time}
SPLIT=${SPLIT-dev} # the right answers to LaMP's test sets are withheld
ENCODER=${ENCODER-facebook/contriever} # as in LaMP's paper
RANKERS=${RANKERS-random bm25-okapi contriever recency} SEEDS=${SEEDS-0}
source utils/studies/steps.sh
declare -A titles=([random]="Random" [bm25]="BM25 (Lucene)" [bm25-okapi]="BM25" [contriever]="Contriever"
    [recency]="Recency" [hybrid]="Contriever and recency") # names of rankers in tables

rank() { # SPLIT RANKER FLAGS...: rank a split of $task and $setting; --other_profile random adds _random to its name
    local data=${task}_${setting}_$1 name flags=() gpus=0
    name=ranked/$data$([[ " $* " != *" --other_profile random "* ]] || echo _random)_by_$2
    case $2 in
        contriever | hybrid) flags=(--model_name "$ENCODER") gpus=$GPUS ;;
        random) flags=(--seed 0) ;;
    esac
    GPUS=$gpus step "$name" "" python retrieval/rank_dataset.py --ranker "$2" "${flags[@]}" "${@:3}" ${RANK_FLAGS-} \
        --input_dataset_addr "$DATA/$data.json" --output_dataset_addr "$OUT/$name.json"
}

begin_table() { # start the table of $model and $setting
    folder=${model##*/}/${setting}_$SPLIT rows=() scored=()
    declare -gA files=()
}

begin_task() { # [-official]: start $task, with its metrics or their -official variants
    answers=()
    case $task in
        LaMP-1 | LaMP-2) metrics="accuracy$1 f1$1" ;;
        LaMP-3) metrics="MAE$1 RMSE$1" ;;
        LaMP-*) metrics="rouge-1 rouge-L" ;;
        *) metrics="rouge-1 rouge-L meteor" ;;
    esac
}

answer() { # TITLE STEM "NAMES" MODEL FLAGS...: make an output for each seed, on GPUS GPUs
    local seed title name metric
    for seed in $SEEDS; do
        title=$1 name=$folder/$task/$2
        [[ $SEEDS != *" "* ]] || title+=", seed $seed"
        [ "$seed" = 0 ] || name+=_seed$seed
        step "$name" "$3" python baselines.py --model_addr "${@:4}" --seed "$seed" --output_addr "$OUT/$name.json" \
            $(answer_flags ${ANSWER_FLAGS-})
        answers+=("$name")
        [ -n "${files[$title]-}" ] || rows+=("$title")
        for metric in $metrics; do files[$title]+=" $OUT/${name}_scores_$metric.json"; done
    done
}

score() { # score all `answers` to $task with each of its metrics
    local metric name
    for metric in $metrics; do
        name=$folder/$task/scores_$metric
        # shellcheck disable=SC2046
        GPUS=0 step "$name" "${answers[*]}" python evaluate_responses.py --strategy "$metric" ${JUDGE_FLAGS-} \
            --inputs_addr "$DATA/${task}_${setting}_$SPLIT.json" --response_addr $(printf "$OUT/%s.json " "${answers[@]}") \
            --score_addr $(printf "$OUT/%s_scores_$metric.json " "${answers[@]}")
        scored+=("$name")
    done
}

table() { # STUDY "TITLE" ...: make the table of all tasks; the rows with these titles are the baselines
    local systems=() baselines=() row title
    for row in "${rows[@]}"; do
        systems+=(--system "$row" ${files[$row]})
        for title in "${@:2}"; do
            [ "${row%, seed *}" != "$title" ] || baselines+=("$row")
        done
    done
    ((${#baselines[@]} < ${#rows[@]})) || baselines=() # no other row is left to compare
    draw "$folder/$1" "${scored[*]}" python utils/make_table.py --output_addr "$OUT/$folder/$1.md" "${systems[@]}" \
        ${baselines:+--baseline "${baselines[@]}"} ${PAPER:+--paper "$PAPER" --paper_table "$setting"}
}
