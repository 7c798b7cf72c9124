"""Runs `lased-loadgen` as `python -m loadgen`."""

from loadgen.cli.main import main

if __name__ == "__main__":
    main()
