"""Interfaces to the operating system: clock, sockets, TLS contexts and the service manager."""
