"""Causes DX5: steps that are too long, stale or without a gradient."""
