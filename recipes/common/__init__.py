"""What several recipes share: the small language model, the console, the pictures."""
