"""The same arithmetic by another kernel: switches of torch, attention backends, compiled code, fused optimizers."""
