"""Which tensors may be read, where their parts are, and which of them a module does not register."""
