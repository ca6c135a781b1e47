"""Commands for during training."""
