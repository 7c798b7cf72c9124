"""Pools whose queues are not visible: observations, estimates of the queue, and indices."""
