"""Remedies RX13: change the formula."""
