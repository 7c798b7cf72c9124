"""A request's body on its way to a pool: what is sent, what is kept for another attempt, and its limits."""

import pytest

from dispatcher.errors import BadRequest
from dispatcher.proxy.request_body import RequestBody


def test_everything_that_has_arrived_goes_on_at_once():
    body = RequestBody(is_chunked=False, max_bytes=0, max_replay_bytes=0)
    body.add(b"one ")
    body.add(b"two")
    assert body.unsent_bytes == 7
    assert body.take(is_complete=False) == b"one two"
    assert body.unsent_bytes == 0
    assert body.take(is_complete=True) == b""


def test_small_pieces_of_a_chunked_body_become_one_chunk():
    body = RequestBody(is_chunked=True, max_bytes=0, max_replay_bytes=0)
    for _ in range(20):
        body.add(b"x")
    assert body.take(is_complete=False) == b"14\r\n" + b"x" * 20 + b"\r\n"
    assert body.take(is_complete=False) == b""
    assert body.take(is_complete=True) == b"0\r\n\r\n"


def test_another_attempt_begins_at_the_beginning():
    body = RequestBody(is_chunked=False, max_bytes=0, max_replay_bytes=100)
    body.add(b"sent")
    assert body.take(is_complete=False) == b"sent"
    body.add(b" and not sent")
    body.rewind()
    assert body.take(is_complete=True) == b"sent and not sent"
    body.rewind()
    assert body.take(is_complete=True) == b"sent and not sent", "a third attempt is possible, too"


@pytest.mark.parametrize(("size", "possible"), [(100, True), (101, False)])
def test_a_body_over_the_buffer_cannot_be_sent_again(size, possible):
    body = RequestBody(is_chunked=False, max_bytes=0, max_replay_bytes=100)
    body.add(b"x" * size)
    body.take(is_complete=False)
    assert body.can_be_replayed is possible


def test_a_request_that_must_not_be_repeated_keeps_nothing():
    assert not RequestBody(is_chunked=False, max_bytes=0, max_replay_bytes=0).can_be_replayed


def test_a_body_over_its_limit_is_refused():
    body = RequestBody(is_chunked=True, max_bytes=10, max_replay_bytes=0)
    body.add(b"x" * 10)
    with pytest.raises(BadRequest, match="over 10 bytes") as refused:
        body.add(b"x")
    assert refused.value.status == 413
