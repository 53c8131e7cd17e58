"""The cache: files that a compile leaves for the next, on this disk and on others'."""
