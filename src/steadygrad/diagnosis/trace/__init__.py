"""Record every op of a replayed step, with the line of the user's code it comes from."""
