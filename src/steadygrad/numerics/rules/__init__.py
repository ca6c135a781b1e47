"""The symptoms that the stable parts themselves report, one a file."""
