"""Symptoms of the loss scale."""
