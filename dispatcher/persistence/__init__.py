"""Keeps learned state on disk, and shares it with other dispatchers through Redis."""
