"""Run a failing step again, part by part, and observe it."""
