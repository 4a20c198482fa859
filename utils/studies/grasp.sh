#!/usr/bin/env bash
# GRASP (arXiv 2609.35262): distillation from the same model, which sees the rubric in training. TAU=0.6 is the least score
# of the teacher's answer to a training question. The newest student writes the samples of each round. The paper samples
# again for each step of 32 questions. A round of QUESTIONS=1000 is about 30 such steps, because starting engine and training
# takes minutes; GRASP_ROUNDS=8 ask about as many questions as a category has (8,111 on average), as in one epoch.
source utils/studies/beyond_steps.sh || exit 2 # not in the root of the repository
compare grasp none rag grasp
