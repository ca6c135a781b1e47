"""The file formats of checkpoints, read without trusting them: where each tensor's bytes are."""
