"""The machine below: clock, sockets, TLS contexts and systemd."""
