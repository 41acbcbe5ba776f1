"""Models written in the tensor API, with the readers of their hyperparameters."""
