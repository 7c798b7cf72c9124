"""Sinks behind `core.interfaces.Recorder`: rows in memory, rows as JSON lines, Prometheus."""
