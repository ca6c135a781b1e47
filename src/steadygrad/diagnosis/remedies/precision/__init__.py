"""Remedies RX10: another precision or loss scale."""
