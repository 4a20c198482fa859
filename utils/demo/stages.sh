# Shared by the demos: run in stages and print each command. Set $num_stages, then source this file.
python=${PYTHON:-python}
chat=demo/models/chat
encoder=demo/models/encoder

start=$(date +%s)
stage=0

# Use only the first GPU, because training in one process refuses several.
on_gpu=
if nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
    visible=${CUDA_VISIBLE_DEVICES-0}
    export CUDA_VISIBLE_DEVICES="${visible%%,*}"
    case $CUDA_VISIBLE_DEVICES in
        [0-9]* | GPU-* | MIG-*) on_gpu=1 ;; # else the GPUs are hidden, to use the CPU
    esac
fi

# Print the stage that begins, and the time so far.
begin() {
    stage=$((stage + 1))
    seconds=$(($(date +%s) - start))
    printf '\n=== %d/%d, after %d:%02d: %s\n' $stage "$num_stages" $((seconds / 60)) $((seconds % 60)) "$*"
}

run() {
    printf '\n$ %s\n' "$*"
    "$@"
}

# Run a function in the background, with half of the cores; `together` shows its output.
# On a GPU, run it first instead: an engine takes 0.9 of the memory, so two do not fit.
aside() {
    if [ -n "$on_gpu" ]; then
        "$@"
        return
    fi
    kept=$(mktemp)
    [ -n "${OMP_NUM_THREADS-}" ] || halved=1
    cores=$(nproc)
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((cores > 1 ? cores / 2 : 1))}"
    "$@" >"$kept" 2>&1 &
    aside=$!
    trap 'pkill -P "$aside" || :; kill "$aside" 2>/dev/null || :; wait "$aside" || :; rm -f "$kept"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
}

# Wait for the function in the background.
together() {
    [ -z "$on_gpu" ] || return 0
    status=0
    wait "$aside" || status=$?
    trap - EXIT INT TERM
    cat "$kept"
    rm "$kept"
    [ -z "${halved-}" ] || unset OMP_NUM_THREADS
    return $status
}
