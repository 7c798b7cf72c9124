"""Sends one run of live traffic and judges it."""
