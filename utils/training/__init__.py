NO_LOSS = -100  # the label of a token that is not to be learnt, as torch and TRL take it
