"""Causes DX2: a formula outside of its domain."""
