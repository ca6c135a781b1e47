"""Pictures of a run or a probe as files."""
