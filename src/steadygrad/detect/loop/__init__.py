"""What the training loop calls and in which order, and rules over it.

`LoopRecorder` listens to one model and its optimizers, at every entry point alike. Each update becomes an `UpdateSeen`
in a `LoopRecord`, which the rules read.
"""
