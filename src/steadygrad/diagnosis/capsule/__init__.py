"""A failing step in a file, and `steady replay`, which runs it again."""
