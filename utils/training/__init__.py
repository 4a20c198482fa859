NO_LOSS = -100  # the label of tokens without a loss, by the convention of torch and TRL
