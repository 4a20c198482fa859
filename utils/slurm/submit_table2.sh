#!/usr/bin/env bash
# Submit the paper's Table 2 for one model to SLURM: 3 categories x 4 methods, judged, in a table. From the root of the
# repository, on a login node with internet:
#
#   utils/slurm/submit_table2.sh --dry_run     # print every command, submit nothing
#   MODEL=google/gemma-2-9b-it utils/slurm/submit_table2.sh
#   MODEL=gpt-4o-mini ANSWER_ARGS="--openai --api_key_addr key.txt" utils/slurm/submit_table2.sh
#
# The table goes to $OUT/<model>/<split>/table.md, the logs to $OUT/logs. Ranked files and planners are every model's.
# After a failure the same command again does what is missing. What can be set, here or in the environment; several
# words in one variable are split at spaces:
set -euo pipefail

MODEL=${MODEL:-Qwen/Qwen2.5-7B-Instruct}           # the generator
JUDGE=${JUDGE:-Qwen/Qwen2.5-32B-Instruct}
PLANNER_BASE=${PLANNER_BASE:-Qwen/Qwen2.5-7B-Instruct} # what the planners, one a category, are trained on
ENCODER=${ENCODER:-facebook/contriever-msmarco}
DATA=${DATA:-data}                                 # folder of the dataset
OUT=${OUT:-output/table2}
CATEGORIES=${CATEGORIES:-Art_and_Entertainment Lifestyle_and_Personal_Development Society_and_Culture}
METHODS=${METHODS:-none rag_random rag planpers}
SPLIT=${SPLIT:-test}                               # validation gives the paper's Table 3
ANSWER_SHARDS=${ANSWER_SHARDS:-4}                  # tasks of an array; keep it when you submit again
JUDGE_SHARDS=${JUDGE_SHARDS:-4}
PREFETCH=${PREFETCH:-1}                            # 0: data and models are there, fetch nothing

# Further flags of the scripts.
RANK_ARGS=${RANK_ARGS:-}                           # rank_dataset.py
ANSWER_ARGS=${ANSWER_ARGS:-}                       # baselines.py and planpers.py
PLANPERS_ARGS=${PLANPERS_ARGS:-}                   # planpers.py alone, as how a planner loads beside an API model
TRAIN_ARGS=${TRAIN_ARGS:-}                         # train_planner.py
JUDGE_ARGS=${JUDGE_ARGS:-}                         # evaluate_responses.py

# What a task takes, for A100 GPUs with 80 GB; a judge on two GPUs also needs JUDGE_ARGS="--tensor_parallel_size 2".
SBATCH_ARGS=${SBATCH_ARGS:-}                       # for every job: --account=... --partition=...
RANK_RESOURCES=${RANK_RESOURCES:---gres=gpu:1 --cpus-per-task=8 --mem=64G --time=04:00:00}
TRAIN_RESOURCES=${TRAIN_RESOURCES:---gres=gpu:1 --cpus-per-task=8 --mem=64G --time=24:00:00}
PLANPERS_RESOURCES=${PLANPERS_RESOURCES:---gres=gpu:1 --cpus-per-task=8 --mem=64G --time=04:00:00}
ANSWER_RESOURCES=${ANSWER_RESOURCES:---gres=gpu:1 --cpus-per-task=8 --mem=64G --time=04:00:00}
JUDGE_RESOURCES=${JUDGE_RESOURCES:---gres=gpu:1 --cpus-per-task=8 --mem=128G --time=04:00:00}
CPU_RESOURCES=${CPU_RESOURCES:---cpus-per-task=1 --mem=16G --time=00:30:00} # merging, the table

main() {
    case "$#,${1:-}" in
        0,) dry_run= ;;
        1,--dry_run) dry_run=1 ;;
        *) refuse "$*: the only flag is --dry_run; everything else is set by variables, see the top of this file" ;;
    esac
    [ -f utils/slurm/common.sh ] || refuse "run it from the root of the repository"
    for method in $METHODS; do
        title_of "$method" >/dev/null
    done
    number=0
    name=${MODEL%/}
    name=${name##*/}
    prefetch
    [ -n "$dry_run" ] || mkdir -p "$OUT/logs"
    all_merged=()
    for category in $CATEGORIES; do
        submit_category
    done
    submit_table
}

refuse() {
    echo "error: $*" >&2
    exit 2
}

title_of() { # METHOD: its row in the table
    case $1 in
        none) echo "No personalization" ;;
        rag_random) echo "RAG (random profile)" ;;
        rag) echo "RAG (asker's profile)" ;;
        planpers) echo "PlanPers" ;;
        *) refuse "METHODS: no method $1; there are none, rag_random, rag and planpers" ;;
    esac
}

is_api() { # do these flags say that the model is behind an API?
    case " $1 " in
        *" --openai "*) ;;
        *) return 1 ;;
    esac
}

without_gpu() { # RESOURCES: the same for a model behind an API; said, for the files' heads ask for a GPU too
    local word
    for word in $1; do
        case $word in
            --gres=* | --gpus*) ;;
            *) printf '%s ' "$word" ;;
        esac
    done
    echo --gres=none
}

is_method() { # does METHODS hold one of these?
    local method wanted
    for method in $METHODS; do
        for wanted in "$@"; do
            [ "$method" != "$wanted" ] || return 0
        done
    done
    return 1
}

prefetch() {
    local command=(utils/slurm/prefetch.sh "$DATA") models=() model
    [ "$PREFETCH" != 0 ] || return 0
    is_api "$ANSWER_ARGS" || models+=("$MODEL")
    is_api "$JUDGE_ARGS" || models+=("$JUDGE")
    if is_method planpers && [ "$PLANNER_BASE" != "$MODEL" ]; then models+=("$PLANNER_BASE"); fi
    if is_method rag rag_random planpers; then models+=("$ENCODER"); fi
    for model in "${models[@]}"; do
        [ -d "$model" ] || command+=("$model") # a folder is there
    done
    if [ -n "$dry_run" ]; then
        printf '%q ' "${command[@]}"
        echo
    else
        "${command[@]}"
    fi
}

# submit NAME FILE RESOURCES VARIABLE=VALUE... -- FLAG...: sets `job` to the job's id. It waits for the jobs in the
# array `after`, and for any other of its name: two that write the same file never run at a time.
submit() {
    local job_name=${OUT##*/}.$1 file=utils/slurm/$2 resources=$3 variables=() flags=()
    shift 3
    while [ "$1" != -- ]; do
        variables+=("$1")
        shift
    done
    shift
    local IFS=:
    local dependency="--dependency=${after[*]:+afterok:${after[*]},}singleton"
    IFS=' '
    flags=(--parsable --export=ALL --job-name="$job_name" --kill-on-invalid-dep=yes $SBATCH_ARGS $resources)
    number=$((number + 1))
    case $file in
        *answer.sbatch | *judge.sbatch) flags+=(--output="$OUT/logs/%x_%a.log") ;;
        *) flags+=(--output="$OUT/logs/%x.log") ;;
    esac
    if [ -n "$dry_run" ]; then
        printf 'job%s=$(' "$number"
        printf '%q ' "${variables[@]}" sbatch "${flags[@]}"
        printf '"%s"' "$dependency"
        printf ' %q' "$file" "$@"
        echo ')'
        job="\$job$number"
    else
        job=$(env "${variables[@]}" sbatch "${flags[@]}" "$dependency" "$file" "$@")
        job=${job%%;*} # on a cluster of clusters its name follows
        echo "$job $job_name"
    fi
}

submit_category() {
    local data=$DATA/${category}_$SPLIT.json ranked=$OUT/ranked/${category}_$SPLIT.json
    local folder=$OUT/$name/$SPLIT/$category
    local merged=() asker= random= method cache=(--embedding_cache "$OUT/embeddings")
    if [[ " $RANK_ARGS " =~ " --ranker"[\ =](bm25|recency|random)" " ]]; then cache=(); fi # nothing is embedded
    if is_method rag rag_random planpers; then
        after=()
        submit_ranking "$SPLIT" "$SPLIT" "${cache[@]}"
        asker=$job
    fi
    if is_method rag_random; then
        after=("$asker") # which has embedded the same posts
        submit_ranking "$SPLIT" "${SPLIT}_random" "${cache[@]}" --random_profile --seed 0
        random=$job
    fi
    for method in $METHODS; do
        case $method in
            none) after=() && submit_answers none "$data" ;;
            rag) after=("$asker") && submit_answers rag "$ranked" --rag ;;
            rag_random) after=("$random") && submit_answers rag_random "${ranked%.json}_random.json" --rag ;;
            planpers) submit_planpers ;;
        esac
        merged+=("$job")
    done
    submit_judge
}

submit_ranking() { # SPLIT NAME FLAG...: rank a file of this category
    local split=$1 ranked=$2
    shift 2
    submit "rank.$category.$ranked" rank.sbatch "$RANK_RESOURCES" ENCODER="$ENCODER" \
        INPUTS="$DATA/${category}_$split.json" OUTPUT="$OUT/ranked/${category}_$ranked.json" -- "$@" $RANK_ARGS
}

submit_answers() { # METHOD INPUTS FLAG...: answers in shards, merged
    local method=$1 inputs=$2 resources="--array=0-$((ANSWER_SHARDS - 1)) $ANSWER_RESOURCES" args=$ANSWER_ARGS
    shift 2
    if [ "$method" = none ]; then args=$(sed -E 's/(^| +)--num_contexts[ =]+[^ ]+//g' <<<"$args"); fi # has no posts
    if is_api "$ANSWER_ARGS"; then resources=$(without_gpu "$resources"); fi
    submit "answer.$name.$category.$SPLIT.$method" answer.sbatch "$resources" \
        MODEL="$MODEL" INPUTS="$inputs" OUTPUT="$folder/$method.json" -- "$@" $args
    submit_merge "$method" "$inputs" "$ANSWER_SHARDS" "$folder/$method.json"
}

submit_planpers() {
    local planner=$OUT/planner/$category trained_on=() split
    for split in train validation; do
        if [ "$split" = "$SPLIT" ]; then # ranked above
            trained_on+=("$asker")
            continue
        fi
        after=()
        submit_ranking "$split" "$split"
        trained_on+=("$job")
    done
    after=("${trained_on[@]}")
    submit "train.$category" train.sbatch "$TRAIN_RESOURCES" MODEL="$PLANNER_BASE" OUTPUT="$planner" \
        INPUTS="$OUT/ranked/${category}_train.json" VALIDATION="$OUT/ranked/${category}_validation.json" \
        -- $TRAIN_ARGS
    after=("$asker" "$job")
    submit "answer.$name.$category.$SPLIT.planpers" plan_and_answer.sbatch \
        "--array=0-$((ANSWER_SHARDS - 1)) $PLANPERS_RESOURCES" MODEL="$MODEL" PLANNER="$planner/best" \
        INPUTS="$ranked" OUTPUT="$folder/planpers.json" -- $ANSWER_ARGS $PLANPERS_ARGS
    submit_merge planpers "$ranked" "$ANSWER_SHARDS" "$folder/planpers.json"
}

submit_merge() { # WHAT INPUTS SHARDS OUTPUT...: merge what the job just submitted writes
    local what=$1 inputs=$2 shards=$3
    shift 3
    after=("$job")
    submit "merge.$name.$category.$SPLIT.$what" merge.sbatch "$CPU_RESOURCES" INPUTS="$inputs" SHARDS="$shards" -- "$@"
}

submit_judge() { # all methods of a category in one load of the judge
    local method scores=() resources="--array=0-$((JUDGE_SHARDS - 1)) $JUDGE_RESOURCES"
    if is_api "$JUDGE_ARGS"; then resources=$(without_gpu "$resources"); fi
    for method in $METHODS; do
        scores+=("$folder/${method}_scores.json")
    done
    after=("${merged[@]}")
    submit "judge.$name.$category.$SPLIT" judge.sbatch "$resources" \
        JUDGE="$JUDGE" INPUTS="$data" FOLDER="$folder" SYSTEMS="$METHODS" -- $JUDGE_ARGS
    submit_merge scores "$data" "$JUDGE_SHARDS" "${scores[@]}"
    all_merged+=("$job")
}

submit_table() {
    local method compared rows=() baselines=()
    for method in none rag_random rag planpers; do
        if is_method "$method"; then compared=$method; fi # with daggers, against all before it
    done
    for method in $METHODS; do
        [ "$method" = "$compared" ] || baselines+=("$(title_of "$method")")
        rows+=(--system "$(title_of "$method")")
        for category in $CATEGORIES; do
            rows+=("$OUT/$name/$SPLIT/$category/${method}_scores.json")
        done
    done
    [ ${#baselines[@]} -eq 0 ] || rows+=(--baseline "${baselines[@]}")
    after=("${all_merged[@]}")
    submit "table.$name.$SPLIT" table.sbatch "$CPU_RESOURCES" OUTPUT="$OUT/$name/$SPLIT/table.md" -- "${rows[@]}"
}

main "$@"
