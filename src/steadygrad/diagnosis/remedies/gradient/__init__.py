"""Remedies RX12: change the gradient before the update."""
