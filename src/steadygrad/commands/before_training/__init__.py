"""Commands for before training."""
