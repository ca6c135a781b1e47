"""Rules PF3: whether trouble would be seen, and what is done about it."""
