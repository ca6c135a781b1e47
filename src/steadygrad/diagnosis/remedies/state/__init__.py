"""Remedies RX15: reset or restore state."""
