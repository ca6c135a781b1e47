"""Rough but healthy training runs, each one plain and guarded from the same seed: `python -m soak --help`."""
