"""The public test kit: doubles to drive a policy by hand, and `check_policy`, which every policy must pass."""

from dispatcher.testing.checks import check_policy, checks
from dispatcher.testing.doubles import Recording, Table

__all__ = ["Recording", "Table", "check_policy", "checks"]
