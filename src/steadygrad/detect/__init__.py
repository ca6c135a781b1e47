"""What is measured in a step and what it shows: detectors (one symptom a file), patterns over steps, sampled checks."""
