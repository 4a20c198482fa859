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
