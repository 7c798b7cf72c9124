"""The forwarding path: client connections, exchanges and pool connections."""
