"""Checks that look at the first batches of a run."""
