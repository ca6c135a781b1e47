"""Remedies RX17: the same arithmetic by another kernel."""
