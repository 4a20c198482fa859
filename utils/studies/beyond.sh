#!/usr/bin/env bash
# All methods after PlanPers in one table, with PlanPers and its baselines. The last row is an upper bound: the judge that
# scores the answers also chose them. Notes below the table say what each method sees.
#
#   LIMIT=1000 STRATEGY=direct bash utils/studies/beyond.sh   # cheaper
source utils/studies/beyond_steps.sh || exit 2 # not in the root of the repository
compare beyond none rag planpers best_of_n pathways offline_rl vac grasp pr2 iap planner_rl ranker rubric_best
