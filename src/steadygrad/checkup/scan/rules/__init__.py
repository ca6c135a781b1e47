"""What is wrong with a tensor: one rule a file, each a pure function over what was measured."""
