"""`python -m dispatcher`, the same as the command `lased-dispatcher`."""

from dispatcher.cli import main

main()
