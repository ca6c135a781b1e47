"""Causes DX1: the range and the resolution of a dtype."""
