"""What the loader delivers."""
