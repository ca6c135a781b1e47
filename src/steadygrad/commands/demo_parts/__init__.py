"""The demo: a small language model, real text, and a mistake that real data loaders make."""
