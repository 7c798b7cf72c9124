"""What the end of an attempt says about its pool: each row of the table in `core.evidence`."""

import pytest

from dispatcher import errors
from dispatcher.core.evidence import BY_ERROR, judge, plausible_service_time
from dispatcher.core.types import Outcome

OK, FAILED, TIMED_OUT, CANCELLED = Outcome.OK, Outcome.FAILED, Outcome.TIMED_OUT, Outcome.CANCELLED
# status -> outcome, teaches, accepted, failure
RESPONSES = {
    101: (OK, False, True, False),
    200: (OK, True, True, False),
    204: (OK, True, True, False),
    304: (OK, True, True, False),
    399: (OK, True, True, False),
    400: (OK, False, True, False),
    404: (OK, False, True, False),
    429: (OK, False, False, False),
    499: (OK, False, True, False),
    500: (FAILED, False, True, True),
    502: (FAILED, False, True, True),
    503: (FAILED, False, False, True),
    599: (FAILED, False, True, True),
}
# error -> outcome, accepted, failure, while no response headers had arrived
WITHOUT_RESPONSE = {
    errors.UpstreamUnreachable(): (FAILED, False, True),
    errors.UpstreamConnectTimeout(): (TIMED_OUT, False, True),
    errors.UpstreamTimeout(): (TIMED_OUT, False, True),
    errors.UpstreamClosed(): (FAILED, None, True),
    errors.UpstreamProtocolError(): (FAILED, None, True),
    errors.UpstreamStale(): (CANCELLED, None, None),
    errors.ClientLeft(): (CANCELLED, None, None),
    errors.BadRequest("too slow", 408): (CANCELLED, None, None),
    errors.OutOfResources(): (CANCELLED, None, None),
    errors.HandlerFailed(): (CANCELLED, None, None),
}


@pytest.mark.parametrize("status", RESPONSES)
def test_a_whole_response_is_judged_by_its_status(status):
    assert judge(None, status) == RESPONSES[status]


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_response_that_is_not_used_says_the_same_as_one_that_is(status):
    assert judge(errors.UpstreamRejected(status), status) == judge(None, status)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("error", [None, errors.UpstreamRejected(503)])
def test_a_rejection_is_no_failure_where_the_policy_learns_from_it(status, error):
    evidence = judge(error, status, learns_rejections=True)
    assert evidence.accepted is False
    assert evidence.failure is False


def test_other_server_errors_stay_failures_where_the_policy_learns_from_rejections():
    assert judge(None, 500, learns_rejections=True).failure is True


@pytest.mark.parametrize("error", WITHOUT_RESPONSE, ids=lambda error: type(error).__name__)
def test_an_attempt_without_a_response_is_judged_by_its_error(error):
    outcome, accepted, failure = WITHOUT_RESPONSE[error]
    assert judge(error, 0) == (outcome, False, accepted, failure)


@pytest.mark.parametrize("error", WITHOUT_RESPONSE, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(("status", "accepted"), [(200, True), (404, True), (500, True), (429, False), (503, False)])
def test_a_response_that_breaks_off_shows_whether_the_pool_took_the_request(error, status, accepted):
    outcome, _, failure = WITHOUT_RESPONSE[error]
    assert judge(error, status) == (outcome, False, accepted, failure)


def test_every_error_of_an_attempt_has_its_row():
    def subclasses(kind):
        for each in kind.__subclasses__():
            yield each
            yield from subclasses(each)

    before_an_attempt = {
        errors.NoPoolAvailable,
        errors.PoolsFull,
        errors.QueueFull,
        errors.QueueTimeout,
        errors.UpstreamError,  # the base class
        errors.UpstreamRejected,  # is judged by its status
    }
    assert set(subclasses(errors.RequestError)) - before_an_attempt == set(BY_ERROR)


@pytest.mark.parametrize(
    ("reported", "elapsed", "used"),
    [(None, 1.0, None), (0.5, 1.0, 0.5), (1.0005, 1.0, 1.0005), (1.1, 1.0, None), (0.0, 1.0, None), (-1.0, 1.0, None)],
)
def test_a_reported_service_time_is_used_if_it_can_be_true(reported, elapsed, used):
    assert plausible_service_time(reported, elapsed) == used
