"""Causes DX4: bad before the step began."""
