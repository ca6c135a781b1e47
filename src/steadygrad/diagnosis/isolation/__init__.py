"""What keeps a diagnosis from harming the training process."""
