"""Estimators of one number from a stream of observations."""
