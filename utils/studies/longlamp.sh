#!/usr/bin/env bash
# LongLaMP (arXiv 2407.11016) in its user and its temporal setting, with a model as it is: without a profile, and with k
# items from it, by four rankers. Beside them the few of the paper's numbers that are known here, of another model.
# LongLaMP-email is made from the licensed Avocado corpus: leave it out of TASKS if you don't have it, and set PAPER to
# nothing, for of the other tasks no number of the paper is known here. docs/lamp.md says how to get the answers to its
# test set.
TASKS=${TASKS-LongLaMP-abstract LongLaMP-review LongLaMP-topic LongLaMP-email} SETTINGS=${SETTINGS-user temporal}
export TASKS SETTINGS
STUDY=longlamp OUT=${OUT-output/longlamp} SPLIT=${SPLIT-test} PAPER=${PAPER-LLaMA-2} exec bash utils/studies/lamp.sh
