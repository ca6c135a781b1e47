"""What only a whole training shows, once it has ended."""
