#!/usr/bin/env bash
# LongLaMP (arXiv 2407.11016) in its user and its temporal setting, with a model that is not fine-tuned: without a profile,
# and with k items from it, by four rankers. The table also has the few published numbers that we know, which
# are those of another model. LongLaMP-email is made from the licensed Avocado corpus. If you lack the corpus, remove the task from TASKS
# and set PAPER='': there are no published numbers for the other tasks. docs/lamp.md describes how to get the answers to the
# test set.
TASKS=${TASKS-LongLaMP-abstract LongLaMP-review LongLaMP-topic LongLaMP-email} SETTINGS=${SETTINGS-user temporal}
export TASKS SETTINGS
STUDY=longlamp OUT=${OUT-output/longlamp} SPLIT=${SPLIT-test} PAPER=${PAPER-LLaMA-2} exec bash utils/studies/lamp.sh
