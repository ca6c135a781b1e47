"""Causes DX3: finite in forward, not in backward."""
