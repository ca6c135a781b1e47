"""A refused step of a program run again: its lines, its calls, its state, without side effects."""
