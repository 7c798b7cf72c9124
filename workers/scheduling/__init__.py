"""The order in which a pool serves its requests."""
