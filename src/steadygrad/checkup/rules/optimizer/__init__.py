"""Rules PF2: what the optimizer holds and how far it steps."""
