"""Rules PF4: formulas that overflow, divide by zero or have no gradient."""
