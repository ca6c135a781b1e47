"""When gradients are cleared and used."""
