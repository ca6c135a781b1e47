"""What doctor, probe, selftest and scan return."""
