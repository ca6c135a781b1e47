"""Steps that are really run before training: probe and selftest. Nothing of them remains."""
