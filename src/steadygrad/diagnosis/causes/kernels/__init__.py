"""Causes DX6: a library, a compiler, a device."""
