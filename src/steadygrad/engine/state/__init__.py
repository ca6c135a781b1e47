"""What a step can change, and copies of it: snapshots, checkpoints, buffered batches, random numbers."""
