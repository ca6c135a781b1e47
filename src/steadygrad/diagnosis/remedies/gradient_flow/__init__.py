"""Remedies RX16: let gradients through where they are stopped."""
