"""State of optimizers, adapters and references."""
