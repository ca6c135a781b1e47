"""Rates and sizes of updates."""
