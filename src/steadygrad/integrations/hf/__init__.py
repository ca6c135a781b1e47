"""A transformers Trainer, and every TRL trainer built on it: where the guard's five calls go in their loop."""
