#!/usr/bin/env bash
# The best of N RAG answers by a ranker that reads the generator's own hidden states (docs/evaluation.md).
source utils/studies/beyond_steps.sh || exit 2 # not in the root of the repository
compare ranker none rag ranker
