"""What is logged, shown and sent about a run."""
