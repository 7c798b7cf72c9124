"""Experiments of other kinds than a grid of scenarios: one file a study, named as on the command line."""
