#!/usr/bin/env bash
# GRASP (arXiv 2609.35262): on-policy distillation from the same model, which sees the rubric in training. TAU=0.6 is the
# least score of the teacher's answer to a training question.
source utils/studies/beyond_steps.sh || exit 2 # not in the root of the repository
compare grasp none rag grasp
