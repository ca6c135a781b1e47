"""What was observed of one step, and of steps one after another. Imports no torch."""
