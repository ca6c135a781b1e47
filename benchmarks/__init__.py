"""Paired measurements. Every figure is a ratio taken side by side in one run; see benchmarks/results/."""
