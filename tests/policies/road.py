"""Helpers for the tests of ported policies: random requests through a real router, with a clock moved by hand."""

from collections.abc import Callable, Sequence
from random import Random

from dispatcher import registry
from dispatcher.core.router import Router
from dispatcher.core.types import Added, Completion, Job, Outcome, PoolSpec, Removed, Report, Ticket
from dispatcher.testing.doubles import Recording


class Road:
    """A router and a clock that is moved by hand. A fault of the policy raises.

    >>> road = Road("least_conn", [PoolSpec("a"), PoolSpec("b")])
    >>> [road.send(at=0.1 * i).pool.id for i in range(3)]
    ['a', 'b', 'a']
    """

    def __init__(self, name: str, specs: Sequence[PoolSpec], seed: int = 1, **options: object) -> None:
        self.recording = Recording()
        self.policy = registry.create(name, Random(seed), options)
        self.router = Router(self.policy, [self.recording])
        self.now = 0.0
        self.jobs = 0
        for spec in specs:
            self.add(spec)

    def add(self, spec: PoolSpec) -> None:
        self.router.apply(Added(spec), self.now)

    def remove(self, pool: str) -> None:
        self.router.apply(Removed(pool), self.now)

    def send(self, at: float | None = None, exclude: frozenset[str] = frozenset()) -> Ticket:
        self.now = self.now if at is None else at
        self.jobs += 1
        ticket = self.router.route(Job(self.jobs), self.now, exclude)
        assert not self.recording.faults, self.recording.faults[0]
        return ticket

    def end(
        self,
        ticket: Ticket,
        at: float,
        outcome: Outcome = Outcome.OK,
        first_byte_at: float | None = None,
        queue: float | None = None,
    ) -> Completion:
        self.now = at
        report = None if queue is None else Report(at, queue_depth=queue)
        done = self.router.complete(ticket, at, outcome, report=report, first_byte_at=first_byte_at)
        assert not self.recording.faults, self.recording.faults[0]
        return done


def live(
    road: Road,
    dice: Random,
    moves: int,
    sent: Callable[[Ticket], None],
    ended: Callable[[Completion], None],
) -> None:
    """Make random arrivals and ends, 20 a second; some requests fail.

    sent: called with each ticket, before the next move. ended: called with each completion.
    """
    open_ones: list[Ticket] = []
    for _ in range(moves):
        road.now += dice.expovariate(20.0)
        if open_ones and dice.random() < 0.5:
            ticket = open_ones.pop(int(dice.random() * len(open_ones)))
            outcome = Outcome.OK if dice.random() < 0.9 else Outcome.FAILED
            first = None
            if dice.random() < 0.8:
                first = ticket.routed_at + dice.random() * (road.now - ticket.routed_at)
            ended(road.end(ticket, road.now, outcome, first))
        else:
            ticket = road.send()
            open_ones.append(ticket)
            sent(ticket)
