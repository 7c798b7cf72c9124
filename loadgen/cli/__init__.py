"""The commands of lased-loadgen."""
