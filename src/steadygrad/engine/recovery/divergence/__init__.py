"""Divergence: whether it is one, and which learning rate holds on the batches that led there."""
