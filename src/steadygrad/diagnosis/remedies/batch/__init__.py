"""Remedies RX11: leave out a batch or rows of it."""
