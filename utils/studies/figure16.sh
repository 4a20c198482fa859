#!/usr/bin/env bash
# The paper's Figure 16: Figure 2 on the validation set, by which the planners' checkpoints are chosen too.
STUDY=figure16 SPLIT=validation exec bash utils/studies/figure2.sh
