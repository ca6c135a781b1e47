"""Before training: doctor (rules over scripts, settings, data and live objects), trials that are really run, and the
scan of checkpoints."""
