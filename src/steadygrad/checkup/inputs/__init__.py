"""What the doctor reads: scripts, settings, data sets, live objects; and the facts that rules judge."""
