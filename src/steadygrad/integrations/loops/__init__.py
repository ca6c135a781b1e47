"""What the integrations share: loops that others own, run again, observed or patched."""
