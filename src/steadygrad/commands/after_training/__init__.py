"""Commands for after training."""
