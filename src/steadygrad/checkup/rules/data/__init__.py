"""Rules PF5: rows, labels, tokens, masks."""
