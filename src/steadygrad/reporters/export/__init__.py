"""A run as tables in files."""
