"""A diagnosis of one step by several ranks."""
