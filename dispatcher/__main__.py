"""`python -m dispatcher`, the same as the command `lased-dispatcher`."""

from dispatcher.app import main

main()
