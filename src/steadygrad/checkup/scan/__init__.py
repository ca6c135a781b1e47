"""Looking for bad numbers in checkpoints of any common format, in a stream and without running anything in them."""
