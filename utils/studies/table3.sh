#!/usr/bin/env bash
# The paper's Table 3: Table 2 on the validation set, which also chooses the planners' checkpoints.
STUDY=table3 SPLIT=validation exec bash utils/studies/table2.sh
