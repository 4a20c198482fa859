#!/usr/bin/env bash
# GRASP (arXiv 2609.35262): distillation from the same model, which sees the rubric in training. Training questions whose
# teacher answer scores below TAU=0.6 are dropped. The newest student writes the samples of each round. The paper samples
# again for each step of 32 questions; starting the engine and the training takes minutes, so here a round of
# QUESTIONS=1000 is about 30 such steps. GRASP_ROUNDS=8 cover about one epoch (a category has 8,111 questions on average).
source utils/studies/beyond_steps.sh || exit 2 # not in the root of the repository
compare grasp none rag grasp
