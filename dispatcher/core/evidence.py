"""What the end of an attempt says about its pool: one table. PURE.

An attempt is one try of a request at one pool. It ends with a whole response, or with an error whose class says what
happened. `judge` maps this end to everything that the policy and the health checks may conclude from it:

| end of the attempt                     | outcome   | teaches | accepted     | failure |
|----------------------------------------|-----------|---------|--------------|---------|
| response 200 to 399                    | ok        | yes     | yes          | no      |
| response 101, or 400 to 499 except 429 | ok        | no      | yes          | no      |
| response 429                           | ok        | no      | no           | no      |
| response 503                           | failed    | no      | no           | yes (*) |
| response 500 to 599 except 503         | failed    | no      | yes          | yes     |
| no connection                          | failed    | no      | no           | yes     |
| no connection in time                  | timed out | no      | no           | yes     |
| no response, or no more of it, in time | timed out | no      | no (**)      | yes     |
| connection closed without a response   | failed    | no      | unknown      | yes     |
| response malformed or broken off       | failed    | no      | unknown (**) | yes     |
| kept-alive connection was closed       | cancelled | no      | unknown      | unknown |
| client left, or its request is bad     | cancelled | no      | unknown (**) | unknown |
| the dispatcher failed, or has no files | cancelled | no      | unknown      | unknown |

(*) Not a failure if the policy learns from rejections: the pool then works as it should.
(**) If final response headers had arrived, their status decides: 429 and 503 mean no, every other one means yes.
"""

from __future__ import annotations

from typing import NamedTuple

from dispatcher.core.types import Outcome
from dispatcher.errors import (
    BadRequest,
    ClientLeft,
    HandlerFailed,
    OutOfResources,
    RequestError,
    UpstreamClosed,
    UpstreamConnectTimeout,
    UpstreamProtocolError,
    UpstreamRejected,
    UpstreamStale,
    UpstreamTimeout,
    UpstreamUnreachable,
)

REJECTIONS = (429, 503)  # statuses by which a pool says that it takes no more requests
CLOCK_TOLERANCE_SECONDS = 1e-3  # a pool's clock and ours may differ by this much over one request


class Evidence(NamedTuple):
    """What one attempt says about its pool.

    outcome: how the attempt ended, for the policy.
    teaches: the time in flight is the pool's own work on a request that it served.
    accepted: whether the pool took the request; None if this is unknown.
    failure: whether health checks count it against the pool; None if it says nothing about the pool.
    """

    outcome: Outcome
    teaches: bool
    accepted: bool | None
    failure: bool | None


SERVED = Evidence(Outcome.OK, teaches=True, accepted=True, failure=False)
ANSWERED = Evidence(Outcome.OK, teaches=False, accepted=True, failure=False)
RATE_LIMITED = Evidence(Outcome.OK, teaches=False, accepted=False, failure=False)
NOT_TAKEN = Evidence(Outcome.FAILED, teaches=False, accepted=False, failure=True)
SERVER_ERROR = Evidence(Outcome.FAILED, teaches=False, accepted=True, failure=True)
BROKEN = Evidence(Outcome.FAILED, teaches=False, accepted=None, failure=True)
TIMED_OUT = Evidence(Outcome.TIMED_OUT, teaches=False, accepted=False, failure=True)
NO_EVIDENCE = Evidence(Outcome.CANCELLED, teaches=False, accepted=None, failure=None)

BY_ERROR: dict[type[RequestError], Evidence] = {
    UpstreamUnreachable: NOT_TAKEN,
    UpstreamConnectTimeout: TIMED_OUT,
    UpstreamTimeout: TIMED_OUT,
    UpstreamClosed: BROKEN,
    UpstreamProtocolError: BROKEN,
    UpstreamStale: NO_EVIDENCE,
    ClientLeft: NO_EVIDENCE,
    BadRequest: NO_EVIDENCE,
    OutOfResources: NO_EVIDENCE,
    HandlerFailed: NO_EVIDENCE,
}


def judge(error: RequestError | None, status: int, learns_rejections: bool = False) -> Evidence:
    """Return what the end of an attempt says about its pool.

    error: why the attempt ended without a whole response, or why the response was not used; None otherwise.
    status: of the final response whose headers arrived; 0 if there was none.
    learns_rejections: the policy learns from responses 429 and 503.

    >>> judge(None, 200).teaches, judge(None, 404).teaches
    (True, False)
    >>> judge(UpstreamTimeout(), 0).outcome.value, judge(None, 503, learns_rejections=True).failure
    ('timed_out', False)
    """
    if error is None or isinstance(error, UpstreamRejected):
        evidence = _by_status(status)
        if learns_rejections and evidence.accepted is False:
            return evidence._replace(failure=False)
        return evidence
    evidence = BY_ERROR[type(error)]
    return evidence._replace(accepted=status not in REJECTIONS) if status else evidence


def _by_status(status: int) -> Evidence:
    if 200 <= status < 400:
        return SERVED
    if status < 500:
        return RATE_LIMITED if status in REJECTIONS else ANSWERED
    return NOT_TAKEN if status in REJECTIONS else SERVER_ERROR


def plausible_service_time(reported: float | None, elapsed: float) -> float | None:
    """Return a service time that a pool reported, or None if it cannot be true.

    reported: seconds, as the pool says; None if it said nothing.
    elapsed: seconds between the routing of the request and the end of its response.
    """
    if reported is None or not 0 < reported <= elapsed + CLOCK_TOLERANCE_SECONDS:
        return None
    return reported
