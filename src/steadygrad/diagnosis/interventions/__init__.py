"""Changes that can be made inside a replay: precision, one call's arguments, a batch, an optimizer, some state."""
