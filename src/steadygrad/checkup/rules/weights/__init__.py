"""Rules PF4: weights that hold no values or bad ones."""
