"""The rules over sampled steps, one symptom a file. They import no torch."""
