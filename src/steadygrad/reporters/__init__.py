"""What a person or a program is shown of a run. Reporters read the journal and nothing else, and import no torch."""
