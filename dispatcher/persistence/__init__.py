"""Learned state: on disk, and shared with other dispatchers through Redis."""
