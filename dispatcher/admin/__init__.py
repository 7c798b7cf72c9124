"""The admin port: metrics, state, control, and the live page."""
