"""Traffic, simulation and experiments. Knows the dispatcher and the workers; neither knows it."""
