# Sourced first by the sbatch files. It is found in the folder that sbatch was called from, the root of
# the repository, because a running job's own path is a copy elsewhere.
#
# A task is put back into the queue, and its scripts resume,
#   - when TERM comes before the time limit or a preemption: python gets it too, leaves, and the task requeues itself;
#   - when its process was killed (exit code above 128: out of memory, say), MAX_REQUEUES times. Not so a training on
#     several GPUs: accelerate launch ends with 1 after any error.
# Not when the user cancelled it, not after exit code 2, a mistake that the same command would make again, and not after
# 1: a bug, or an API that failed on some requests, which the same command asks for again.

terminated=
child=
# Set first: the signal may come in the very second a task starts.
trap 'terminated=1; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null || true' TERM

set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
export HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1
if [ -z "${TRITON_CACHE_DIR:-}" ]; then # on the node's own disk: tasks that start together would meet in one home
    TRITON_CACHE_DIR=$(mktemp -d)
    export TRITON_CACHE_DIR
    trap 'rm -rf "$TRITON_CACHE_DIR"' EXIT
fi
PYTHON=${PYTHON:-python}
MAX_REQUEUES=${MAX_REQUEUES:-5}
# Of an array, SLURM_JOB_ID is in one of the tasks the whole array's.
task=${SLURM_ARRAY_TASK_ID+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
task=${task:-$SLURM_JOB_ID}
printf '== %s: %s, job %s on %s, restart %s\n' \
    "$(date '+%F %T')" "$SLURM_JOB_NAME" "$task" "$(hostname)" "${SLURM_RESTART_COUNT:-0}"

# run COMMAND...: returns where it succeeded, else ends the task or requeues it.
run() {
    local code=0
    printf '\n$ %s\n' "$*" | sed -E 's#://[^/?\# ]*@#://#g' # no password of an API's address in the log
    "$@" & # in the background, for a trap waits until the command in front has ended
    child=$!
    [ -z "$terminated" ] || kill -TERM "$child" 2>/dev/null || true # it came before there was a child
    while kill -0 "$child" 2>/dev/null; do # a signal ends `wait`, not the child
        wait "$child" || true
    done
    wait "$child" || code=$? # bash remembers how it ended
    child=
    [ "$code" = 0 ] || leave "$code"
}

# leave CODE: end the task with a step's exit code, back into the queue where that makes sense.
leave() {
    local code=$1 job
    if [ "$code" = 2 ]; then
        exit 2
    elif [ -n "$terminated" ]; then
        echo "stopped by a signal, exit code $code"
    elif [ "$code" -le 128 ]; then
        exit "$code"
    elif [ "${SLURM_RESTART_COUNT:-0}" -ge "$MAX_REQUEUES" ]; then
        echo "killed, exit code $code, and requeued $MAX_REQUEUES times already: given up"
        exit "$code"
    else
        echo "killed, exit code $code"
    fi
    # Cancelled, requeued by SLURM itself, or its node going down: then it runs no more, and SLURM sees to it. A task
    # that reached its limit unwarned can still be requeued, but SLURM may have cancelled what waits for its array.
    for _ in 1 2 3; do # a busy SLURM may not answer at once
        job=$(scontrol -o show job "$task") && break
        sleep 2
    done
    case $job in
        *" JobState=RUNNING "* | *" Reason=TimeLimit "*) ;;
        *)
            echo "not requeued: $(grep -oE 'JobState=[A-Z_]+' <<<"$job" || echo 'SLURM does not tell its state')"
            exit "$code"
            ;;
    esac
    echo "back into the queue; the next run resumes here"
    scontrol requeue "$task"
    exit "$code"
}
