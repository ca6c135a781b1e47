"""Trainings that diverge, each with its healthy twin, and rough ones that do not."""
