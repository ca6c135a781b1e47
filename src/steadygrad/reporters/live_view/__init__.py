"""Following a run from its files: its rows as they come, whether it is still alive, and its story in words."""
