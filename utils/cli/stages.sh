# What the demos share: a run in stages, of which each command is printed. To be sourced, with $num_stages set.
python=${PYTHON:-python}
chat=demo/models/chat
encoder=demo/models/encoder

start=$(date +%s)
stage=0

# What comes now, and how long it has taken so far.
begin() {
    stage=$((stage + 1))
    seconds=$(($(date +%s) - start))
    printf '\n=== %d/%d, after %d:%02d: %s\n' $stage "$num_stages" $((seconds / 60)) $((seconds % 60)) "$*"
}

run() {
    printf '\n$ %s\n' "$*"
    "$@"
}

# A function in the background, while others run: each has half of the cores. What it prints, `together` shows.
aside() {
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

# Until the function in the background has ended too.
together() {
    status=0
    wait "$aside" || status=$?
    trap - EXIT INT TERM
    cat "$kept"
    rm "$kept"
    [ -z "${halved-}" ] || unset OMP_NUM_THREADS
    return $status
}
