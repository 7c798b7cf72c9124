"""All I/O of the service. Protocol logic that needs no I/O is in `heads`, `framing` and `reader`, which are pure."""
