"""Keeps what policies have learned: across a change of policy, and with `state_file` across restarts."""

from __future__ import annotations

import os
from pathlib import Path

import structlog

from dispatcher.core.policy import BasePolicy
from dispatcher.errors import ConfigError, StartError
from dispatcher.persistence import state_file

log = structlog.get_logger()

MAX_SAVED_POOLS = 1024  # of each kind of policy; the pools observed last are kept


class LearnedState:
    """What policies have learned, by kind of policy and by pool.

    path: the state file; empty to keep the state in memory only.
    Raises StartError if the file could not be written later. An unusable file is logged and ignored.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._states: state_file.Knowledge = {}
        if not path:
            return
        if not os.access(Path(path).parent, os.W_OK):
            raise StartError(f"state_file: cannot write {path}: there is no such folder, or no permission")
        try:
            self._states = state_file.load(Path(path))
        except ConfigError as error:
            log.warning("state_ignored", reason=str(error))

    def restore(self, policy: BasePolicy) -> None:
        """Give a new policy the state of its kind, before it gets any pool. Log what came from the file."""
        if policy.state_kind is None:
            return
        state = self._states.get(policy.state_kind, {})
        try:
            policy.set_state(state)
        except ConfigError as error:
            log.warning("state_ignored", reason=f"state_file {self._path}: {error}")
            return
        if not self._path:
            return
        other_kinds = [kind for kind, pools in self._states.items() if pools and kind != policy.state_kind]
        if state:
            log.info("state_restored", pools=sorted(state))
        elif other_kinds:
            log.warning(
                "state_of_another_policy",
                holds=other_kinds,
                needed=policy.state_kind,
                consequence="this policy begins without knowledge; what the other has learned is kept",
            )

    def capture(self, policy: BasePolicy) -> None:
        """Take the present state of a policy."""
        if policy.state_kind is None:
            return
        state = self._states.setdefault(policy.state_kind, {})
        for pool, learned in policy.get_state().items():
            state.pop(pool, None)  # moves the pool to the end: those at the front are dropped first
            state[pool] = learned
        for pool in list(state)[:-MAX_SAVED_POOLS]:
            del state[pool]

    def discard(self, pool: str) -> None:
        """Drop what any policy has learned of a pool."""
        for state in self._states.values():
            state.pop(pool, None)

    def save(self, policy: BasePolicy) -> None:
        """Write the state file, if there is one, with the present state of a policy. A failure is only logged."""
        if not self._path:
            return
        self.capture(policy)
        try:
            state_file.save(Path(self._path), self._states)
        except OSError as error:
            log.error("state_not_saved", path=self._path, error=error.strerror)
