"""Training and evaluation mode."""
