"""Stable losses."""
