"""Experiments on live processes and in the simulator."""
