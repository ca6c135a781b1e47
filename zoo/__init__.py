"""Sick and healthy training steps with known truth, and the scorer."""
