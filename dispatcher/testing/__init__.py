"""The public test kit: `check_policy`, which every policy must pass, and objects to drive a policy by hand."""

from dispatcher.testing.checks import check_policy, checks
from dispatcher.testing.doubles import Recording, Table

__all__ = ["Recording", "Table", "check_policy", "checks"]
