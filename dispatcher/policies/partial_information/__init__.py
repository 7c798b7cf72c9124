"""What is known of pools whose queues are not seen: estimates, observations and indices."""
