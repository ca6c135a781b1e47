"""Find the op, the rows and the line where the first bad value was made."""
