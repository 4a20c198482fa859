#!/usr/bin/env bash
# The paper's Table 3: Table 2 on the validation set, by which the planners' checkpoints are chosen too.
STUDY=table3 SPLIT=validation exec bash utils/studies/table2.sh
