#!/usr/bin/env bash
# VAC (arXiv 2508.10695): a feedback model, which sees the narrative in training, and a policy are trained in turns. The
# policy alone answers the test set.
source utils/studies/beyond_steps.sh || exit 2 # not in the root of the repository
compare vac none rag vac
