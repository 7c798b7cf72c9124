"""A live HTTP dispatcher that learns how fast its pools are while it routes.

The layout and its rules are in `DESIGN.md` beside this file.
"""

__version__ = "0.1.0"
