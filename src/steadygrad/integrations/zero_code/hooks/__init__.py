"""Where a guarded process is observed: the calls of torch that every training loop makes."""
