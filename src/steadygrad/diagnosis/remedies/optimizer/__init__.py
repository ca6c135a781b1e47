"""Remedies RX14: change the optimizer, its options or the order of its calls."""
