"""Rules PF1: dtypes, autocast, loss scaling."""
