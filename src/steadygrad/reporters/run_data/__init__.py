"""Read a run as it grows: its rows, its state, its summary."""
