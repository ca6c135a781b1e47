"""Runs in which nothing becomes NaN and the training is broken all the same, and healthy runs that look like them."""
