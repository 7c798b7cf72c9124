"""Virtual time: the dispatcher's own Router, Fleet and Policy, driven by an event heap instead of sockets."""
