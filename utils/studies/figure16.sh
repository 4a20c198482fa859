#!/usr/bin/env bash
# The paper's Figure 16: Figure 2 on the validation set, which also chooses the planners' checkpoints.
STUDY=figure16 SPLIT=validation exec bash utils/studies/figure2.sh
