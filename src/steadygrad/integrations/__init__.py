"""The entry points, by who owns the loop: Guard, attach(), trainers, bare optimizers, `steady run`."""
