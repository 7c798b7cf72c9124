"""Estimators of one number from a stream of observations: learn_one, predict_one, weight."""
