"""GRPO with everything switched on that keeps it finite: a text toy, a small language model, a model that sees."""
