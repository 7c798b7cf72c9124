"""One file a policy, named as in the configuration. No policy imports another: what they share is in `base`."""
