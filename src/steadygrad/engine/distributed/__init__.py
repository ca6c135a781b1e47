"""Several ranks, one decision."""
