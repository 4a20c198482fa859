#!/usr/bin/env bash
# LongLaMP (arXiv 2407.11016) in its user and its temporal setting, with a model that is not fine-tuned: without a
# profile, and with k items from it, as ranked by each of four rankers. The table also shows the paper's numbers that
# are known here, which are those of another model.
# LongLaMP-email is made from the licensed Avocado corpus (docs/lamp.md); its test set also needs test_outputs.json. If
# you lack the corpus, remove the task from TASKS and set PAPER='': no numbers are known here for the other tasks.
TASKS=${TASKS-LongLaMP-abstract LongLaMP-review LongLaMP-topic LongLaMP-email} SETTINGS=${SETTINGS-user temporal}
export TASKS SETTINGS
STUDY=longlamp OUT=${OUT-output/longlamp} SPLIT=${SPLIT-test} PAPER=${PAPER-LLaMA-2} exec bash utils/studies/lamp.sh
