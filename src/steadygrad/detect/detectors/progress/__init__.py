"""Symptoms of a run that makes no progress."""
