"""One row a step, as Arrow IPC streams: the columns, the segments, writing and reading them."""
