# job.sbatch sources this file first, from the folder where sbatch was called (the root of the repository), because SLURM
# runs a copy of the job's script from another place.
#
# A task is requeued, and its scripts resume,
#   - after a TERM before the time limit or a preemption: python also gets it and exits, then the task requeues itself;
#   - if its process was killed (exit code above 128, for example for lack of memory), up to MAX_REQUEUES times. Training
#     on several GPUs is not requeued, because accelerate launch exits with 1 after any error.
# It is not requeued if the user cancelled it, or after exit code 2 (a mistake that the same command would repeat) or 1 (a
# bug, or an API that failed on some requests; run the same command again to retry them).

terminated=
child=
# Set first, because the signal may come as soon as a task starts.
trap 'terminated=1; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null || true' TERM

set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
export HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1
if [ -z "${TRITON_CACHE_DIR:-}" ]; then # on the node's own disk, so that tasks do not share it
    TRITON_CACHE_DIR=$(mktemp -d)
    export TRITON_CACHE_DIR
    trap 'rm -rf "$TRITON_CACHE_DIR"' EXIT
fi
PYTHON=${PYTHON:-python}
MAX_REQUEUES=${MAX_REQUEUES:-5}
# In an array, one task's SLURM_JOB_ID is the whole array's.
task=${SLURM_ARRAY_TASK_ID+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
task=${task:-$SLURM_JOB_ID}
printf '== %s: %s, job %s on %s, restart %s\n' \
    "$(date '+%F %T')" "$SLURM_JOB_NAME" "$task" "$(hostname)" "${SLURM_RESTART_COUNT:-0}"

# run COMMAND...: run the command; if it fails, end or requeue the task.
run() {
    local code=0
    # Print the command without the passwords and keys in its addresses.
    printf '\n$ %s\n' "$*" | sed -E -e 's#://[^/?\# ]*@#://#g' \
        -e 's#([?&][^=& ]*(key|token|secret|pass|sig|auth|code)[^=& ]*=)[^ &]+#\1***#gI'
    "$@" & # in the background, because a trap waits until a foreground command has ended
    child=$!
    [ -z "$terminated" ] || kill -TERM "$child" 2>/dev/null || true # the signal came before the child started
    while kill -0 "$child" 2>/dev/null; do # a signal ends `wait`, not the child
        wait "$child" || true
    done
    wait "$child" || code=$? # bash remembers how it ended
    child=
    [ "$code" = 0 ] || leave "$code"
}

# leave CODE: end the task with a step's exit code, and requeue it if that makes sense.
leave() {
    local code=$1 job
    if [ "$code" = 2 ]; then
        exit 2
    elif [ -n "$terminated" ]; then
        echo "stopped by a signal, exit code $code"
    elif [ "$code" -le 128 ]; then
        exit "$code"
    elif [ "${SLURM_RESTART_COUNT:-0}" -ge "$MAX_REQUEUES" ]; then
        echo "killed, exit code $code, already requeued $MAX_REQUEUES times; giving up"
        exit "$code"
    else
        echo "killed, exit code $code"
    fi
    # A task that was cancelled, requeued by SLURM, or lost its node is no longer running: leave it to SLURM. A task that
    # reached its time limit without a signal can still be requeued, but SLURM may already have cancelled jobs that wait
    # for its array.
    for _ in 1 2 3; do # a busy SLURM may not answer at once
        job=$(scontrol -o show job "$task") && break
        sleep 2
    done
    case $job in
        *" JobState=RUNNING "* | *" Reason=TimeLimit "*) ;;
        *)
            echo "not requeued: $(grep -oE 'JobState=[A-Z_]+' <<<"$job" || echo 'SLURM does not report its state')"
            exit "$code"
            ;;
    esac
    echo "requeued; the next run resumes here"
    scontrol requeue "$task"
    exit "$code"
}
