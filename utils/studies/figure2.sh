#!/usr/bin/env bash
# The paper's Figure 2: the scores of PlanPers with 0 to 10 posts from the profile, on the test set.
STUDY=${STUDY-figure2} POSTS=${POSTS-0 2 4 6 8 10} # with 10 posts, the answers are those of Table 2
source utils/studies/lampqa_steps.sh || exit 2 # not in the root of the repository
SEEDS=${SEEDS%% *} # a figure shows only one seed

for category in $CATEGORIES; do
    rank "$SPLIT"
    train
    answers=()
    for model in $MODELS $OPENAI_MODELS; do
        for posts in $POSTS; do
            answer planpers "$posts"
        done
    done
    judge
done
for model in $MODELS $OPENAI_MODELS; do
    systems=() rows=()
    for posts in $POSTS; do
        mapfile -t files < <(score_files planpers "$posts" "$SEEDS")
        systems+=(--system "$posts" "${files[@]}")
        rows+=(--system "PlanPers, k = $posts" "${files[@]}")
    done
    figure=${model##*/}/$SPLIT/$STUDY$(judge_suffix)
    draw "$figure.md" "${scored[*]}" python utils/make_table.py --output_addr "$OUT/$figure.md" "${rows[@]}"
    draw "$figure" "${scored[*]}" python utils/make_figures.py --figure "${STUDY#figure}" --output_addr "$OUT/$figure" \
        "${systems[@]}"
done
