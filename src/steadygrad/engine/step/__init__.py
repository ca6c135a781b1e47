"""The parts of one training step: run it, measure it, check it, apply or refuse its update."""
