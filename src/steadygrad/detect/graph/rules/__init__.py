"""The rules over a loss's graph and over live objects, one mistake a file."""
