"""Rules PF2: the order of backward, unscale, clip, step and zero_grad."""
