"""What is measured of gradients, weights and batches for the record of a loop."""
