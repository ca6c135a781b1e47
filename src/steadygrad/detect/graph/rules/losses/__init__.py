"""Rules over what a loss is applied to, one error a file."""
