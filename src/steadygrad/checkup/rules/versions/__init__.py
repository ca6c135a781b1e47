"""Rules PF6: versions of a library that are known to be wrong. `known_bugs.toml` has them, one table each."""
