"""Symptoms: finite and far above what is usual or allowed."""
