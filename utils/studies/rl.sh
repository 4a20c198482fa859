#!/usr/bin/env bash
# Reinforcement learning for your own method: in each of ROUNDS rounds, the newest policy answers QUESTIONS training
# questions N times, the judge scores the answers, and GRPO learns from the calls of one ROLE. The best round by validation
# score answers the test set, beside the untrained method.
#
#   METHOD=mine.py bash utils/studies/rl.sh                 # learn from the calls of the command's own model
#   METHOD=mine.py ROLE=search bash utils/studies/rl.sh     # from the calls with model="search"
#   METHOD=mine.py REWARD="--own 1 --own_addr mine_reward.py --score 0" bash utils/studies/rl.sh
#
# REWARD is flags of utils/combine_scores.py (default: the judge's score), METHOD_FLAGS are the method's.
N=${N-8}
source utils/studies/beyond_steps.sh || exit 2 # not in the root of the repository
if [[ ${METHOD-} != *.py || ! -f $METHOD ]]; then
    echo "error: METHOD=${METHOD-}: must be the file of a method: METHOD=mine.py bash utils/studies/rl.sh" >&2 && exit 2
fi
role=${ROLE-generator} name=${METHOD##*/}
name=${name%.py}
if [[ " $trained " == *" ${name}_rl "* ]]; then
    echo "error: METHOD=$METHOD: ${name}_rl is the name of an included method; rename the file" >&2 && exit 2
fi
if [[ ${REWARD-} =~ --own_addr[=\ ]([^ ]+) && ! -f ${BASH_REMATCH[1]} ]]; then
    echo "error: REWARD: --own_addr ${BASH_REMATCH[1]}: no such file" >&2 && exit 2
fi
own[$name]=$METHOD
titles[$name]="$name, untrained" titles[${name}_rl]="$name, trained"
trained+=" ${name}_rl"
compare "rl_$name" none rag "$METHOD" "${name}_rl"
