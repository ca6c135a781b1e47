"""Symptoms: NaN, Inf or an overflowed norm in the numbers of a step."""
