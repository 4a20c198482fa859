# shellcheck shell=bash disable=SC2034 # the studies use variables that functions set
# The functions of all studies. A study sets its variables and sources this file, from the root of the repository.
#
#   step NAME "NAMES IT WAITS FOR" COMMAND...   run a command, and end the study if it fails
#   draw NAME "NAMES IT WAITS FOR" COMMAND...   the same for a command without a GPU and without --dry_run (tables, ...)
#
# A step is named after its output, without $OUT/. Finished commands end at once, so running a study again resumes it.
# Environment variables:
#   DRY_RUN=1                   run each command with --dry_run if its inputs exist; continue after a mistake, and print
#                               the total of all counts, and each mistake once, at the end
#   SBATCH="--partition=gpu"    submit each step as a SLURM job that waits for the steps it names; the value is sbatch's
#                               options
#   GPUS=4                      GPUs per step: processes of a training run, or copies of a model
#   RANK_FLAGS, TRAIN_FLAGS, ANSWER_FLAGS, PLANPERS_FLAGS, JUDGE_FLAGS   further flags of the scripts
#   METHOD_FLAGS                further flags of your own methods (METHODS="none mine.py")
set -euo pipefail
[ -f utils/studies/steps.sh ] || { echo "error: run studies from the root of the repository" >&2 && exit 2; }
GPUS=${GPUS:-1} OUT=${OUT%/}
[[ $OUT != *[[:space:]%]* ]] || { echo "error: OUT=$OUT: must not contain spaces or %" >&2 && exit 2; }
declare -A jobs=() # SLURM's job of each step, by name
declare -A own=()  # the files of the user's own methods, by name
tables=()          # files to print at the end
declare -A makers=() # in a dry run, the step that makes each file or folder
makes='--output_dataset_addr --output_dir --link_addr --output_addr --worst_addr --score_addr'
# In a dry run: the errors, the number of steps with each error, the number of steps that wait for others, the number of
# steps that use each local model, and a file with the output of the steps that ran.
errors=() waiting=0 counted=''
declare -A num_steps=() models=()
[ -z "${DRY_RUN-}" ] || counted=$(mktemp)
trap finish EXIT

finish() {
    local code=$?
    if [ -n "$counted" ]; then
        [ "$code" -gt 128 ] || sum_up
        rm -f "$counted" "$counted.errors"
    fi
    [ "$code" != 0 ] || [ "${#errors[@]}" = 0 ] || code=2
    [ "$code" != 0 ] || [ -n "$counted" ] || show_tables
    exit "$code"
}

sum_up() { # add up the lines with totals that utils/runs/driver.py prints
    LC_ALL=C awk -v waiting="$waiting" '
        /^total: / {
            is_open += /at least/
            gsub(/at least |,/, "") # total: 20 requests 5000 prompt tokens 0.0100 to 0.0400 USD without retries
            requests += $2; tokens += $4; prompts += $7; most += $9; is_priced += NF > 6
        }
        END {
            least = is_open ? "at least " : ""
            printf "\ncounted: %s%.0f requests, %s%.0f prompt tokens", least, requests, least, tokens
            if (is_priced && is_open) printf ", at least %.4f USD", prompts
            if (is_priced && !is_open) printf ", %.4f to %.4f USD without retries", prompts, most
            print waiting ? "; steps that wait for others, not counted: " waiting : ""
        }' "$counted"
    check_models_of_waiting
    local error
    for error in "${errors[@]}"; do printf '\n%d step(s): %s\n' "${num_steps[$error]}" "$error" >&2; done
}

check_models_of_waiting() { # note an error for each model that only waiting steps use and this machine lacks
    local model error
    for model in "${!models[@]}"; do
        [[ $'\n'${errors[*]/#/$'\n'} != *$'\n'"$model: "* ]] || continue
        error=$(python -c 'import sys
from utils.models.model_folder import ModelFolder
from utils.base.errors import run_script
run_script(lambda: ModelFolder(sys.argv[1]).checked() and 0)' "$model" 2>&1 >/dev/null) || note_error "$error" "${models[$model]}"
    done
}

show_tables() {
    local one
    for one in "${tables[@]}"; do
        if [ -n "${SBATCH+set}" ]; then
            printf '\n%s: the table, once its job has ended\n' "$one"
        elif [ -f "$one" ]; then
            printf '\n%s\n%s\n' "$(<"$one")" "$one"
        fi
    done
}

step() {
    local name=$1 waits=$2 code=0 one
    shift 2
    for one in $waits; do
        [ -n "${jobs[$one]-}" ] || { echo "error: $name waits for $one, which no step makes" >&2 && exit 2; }
    done
    jobs[$name]=here
    printf '\n# %s, after %d:%02d\n$ %s\n' "$name" $((SECONDS / 60)) $((SECONDS % 60)) "$(words "$@")"
    [ -z "${SBATCH+set}" ] || submit "$name" "$waits" "$@"
    if [ -n "${DRY_RUN-}" ]; then
        count "$name" "$@"
    elif [ -z "${SBATCH+set}" ]; then
        "$@" || code=$?
        [ "$code" = 0 ] || { echo "$name ended with exit code $code; run the study again to resume" >&2 && exit "$code"; }
    fi
}

count() { # NAME COMMAND...: run a step's command with --dry_run, unless it lacks a file that an earlier step makes
    local name=$1 word flag='' made maker code=0 missing=''
    shift
    for word in "$@"; do
        [[ $word != --* ]] || flag=$word
        [[ $word == */* ]] || continue
        [ "$flag" != --model ] || word=${word#*=} # NAME=PATH
        made=${word%.trace.jsonl} made=${made%.plans.json}
        [[ ${made##*/} != @(best|last) ]] || made=${made%/*} # best and last are in a step's output folder
        # The first step with this flag writes the file; later ones read it.
        [[ " $makes " != *" $flag "* ]] || : "${makers[$made]:=$name}"
        maker=${makers[$made]-$name}
        if [ "$maker" = "$name" ] && [[ $flag == --@(model_addr|planner_model|evaluator_llm) ]]; then
            [[ " $* " == *" --openai "* ]] || models[$word]=$((${models[$word]-0} + 1))
        fi
        if [ "$maker" != "$name" ] && [ ! -e "$word" ] && [[ "$missing," != *" $maker,"* ]]; then
            missing+="${missing:+,} $maker"
        fi
    done
    [ -z "${IS_DRAWN-}" ] || return 0
    if [ -n "$missing" ]; then
        echo "waits for$missing: not counted"
        waiting=$((waiting + 1))
    else
        { "$@" --dry_run 2>&1 >&3 | tee "$counted.errors" >&2; } 3>&1 | tee -a "$counted" || code=$?
        [ "$code" -le 128 ] || exit "$code" # interrupted
        [ "$code" = 0 ] || note_error "$(<"$counted.errors")"
    fi
}

note_error() { # TEXT [NUMBER]: note that a step, or a NUMBER of them, has the last error in what it printed
    local text=${1##*$'\n'error: }
    text=${text#error: }
    [ -n "${num_steps[$text]-}" ] || errors+=("$text")
    num_steps[$text]=$((${num_steps[$text]-0} + ${2-1}))
}

draw() { # like `step`, for a script without --dry_run
    case $4 in
        utils/make_table.py | utils/rounds_table.py) tables+=("$6") ;; # their --output_addr
    esac
    GPUS=0 IS_DRAWN=1 step "$@"
}

words() { # COMMAND...: print a command so that it can be pasted, without the passwords and keys in its addresses
    local text
    text=$(printf '%q ' "$@")
    sed -E -e 's#://[^/?\# ]*@#://#g' \
        -e 's#([?&][^=& ]*(key|token|secret|pass|sig|auth|code)[^=& ]*=)([^ &\]|\\[^&])*#\1***#gI' <<<"${text% }"
}

submit() { # NAME "NAMES" COMMAND...: submit a job, or in a dry run print the sbatch command
    local name=$1 after='' one printed options command
    for one in $2; do after+=:${jobs[$one]}; done
    shift 2
    # shellcheck disable=SC2206 # $SBATCH is split into words
    options=("--gres=gpu:$GPUS" $SBATCH)
    [ "$GPUS" != 0 ] || options=("${options[@]:1}" --gres=none) # this overrides $SBATCH
    # Jobs with the same name write the same file, so they run one at a time (singleton).
    command=(sbatch --parsable --export=ALL --kill-on-invalid-dep=yes "${options[@]}"
        "--job-name=${OUT##*/}.${name//\//.}" "--output=$OUT/logs/%x.log" "--dependency=${after:+afterok$after,}singleton")
    if [ -n "${DRY_RUN-}" ]; then
        jobs[$name]=$name
        echo "$ $(words "${command[@]}") utils/slurm/job.sbatch ..."
    else
        mkdir -p "$OUT/logs"
        printed=$("${command[@]}" utils/slurm/job.sbatch "$@")
        one=$(tail -n 1 <<<"$printed") # a cluster's sbatch may print other lines first
        [[ $one =~ ^[0-9]+(;.*)?$ ]] || { echo "error: sbatch printed no job id, but: $one" >&2 && exit 2; }
        jobs[$name]=${one%%;*} # in a federation, the cluster's name follows the id
        echo "job ${jobs[$name]}"
    fi
}

# check_models: check that there is a model, and remove trailing slashes, because a name's last part names a folder
check_models() {
    local local_models api_models
    # shellcheck disable=SC2206 # names are split into words
    local_models=($MODELS) api_models=($OPENAI_MODELS)
    MODELS=${local_models[*]%/} OPENAI_MODELS=${api_models[*]%/}
    [ -n "$MODELS$OPENAI_MODELS" ] || { echo "error: MODELS and OPENAI_MODELS are both empty" >&2 && exit 2; }
}

# name_methods "NAMES": set `methods` to the names in METHODS (some of NAMES, or Python files), and `own` to the files
name_methods() {
    local method name
    methods=()
    for method in $METHODS; do
        name=$method
        if [[ $method == *.py ]]; then
            name=${method##*/} name=${name%.py}
            [ -f "$method" ] || { echo "error: METHODS: $method: no such file" >&2 && exit 2; }
            if [[ " $1 ${trained-} " == *" $name "* ]]; then
                echo "error: METHODS: $method: $name is the name of an included method; rename the file" >&2 && exit 2
            fi
            own[$name]=$method
        elif [[ " $1 " != *" $method "* ]]; then
            echo "error: METHODS: $method: unknown; use a Python file (mine.py), or some of: $1" >&2 && exit 2
        fi
        if [[ " ${methods[*]-} " == *" $name "* ]]; then
            echo "error: METHODS: two are called $name" >&2 && exit 2
        fi
        methods+=("$name")
    done
    [ -n "${methods[*]-}" ] || { echo "error: METHODS is empty; use some of: $1" >&2 && exit 2; }
}

# answer_flags FLAGS: print the flags, without prices if the model of `access` is local, because scripts then refuse them
answer_flags() {
    if [ -n "${api[*]-}" ]; then
        echo "$*"
    else
        sed -E 's/--price_(in|out|cached)[ =][^ ]+//g' <<<"$*"
    fi
}

# access MODEL: set `api`, the flags for a model behind an API (empty if it is local), and call `engine` with them
access() {
    api=()
    [[ " $OPENAI_MODELS " != *" $1 "* ]] || api=(--openai ${KEY:+--api_key_addr "$KEY"})
    engine "${api[@]}"
}

# engine FLAGS...: set `engine`, the flags that run a model on all GPUs, and `gpus`, the number of GPUs that the step needs
engine() {
    engine=() gpus=$GPUS
    if [[ " $* " == *" --openai "* ]]; then
        gpus=0
    elif [ "$GPUS" -gt 1 ]; then
        engine=(--data_parallel_size "$GPUS")
    fi
}

# training STEP SIZE: set `training`, the launch command, and `batch`, the flags that divide the STEP questions of each
# update among the GPUs, at most SIZE at a time
training() {
    local share=$(($1 / (GPUS > 1 ? GPUS : 1))) size
    size=$(($2 < share ? $2 : share))
    training=(python) batch=()
    [ "$GPUS" -gt 1 ] || return 0
    if ((share * GPUS != $1 || share % size)); then
        echo "error: GPUS=$GPUS cannot share a step of $1 questions evenly; use 2, 4 or 8" >&2 && exit 2
    fi
    training=(accelerate launch --multi_gpu --num_processes "$GPUS" --main_process_port 0)
    batch=(--per_device_train_batch_size "$size" --gradient_accumulation_steps $((share / size)))
}
