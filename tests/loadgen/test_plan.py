"""Plans: traces, targets, bodies and sending processes, all determined by the seed; and mistakes in them."""

import gzip
import math
from collections import Counter
from random import Random

import numpy as np
import pytest

from loadgen.attack.arrivals import Poisson
from loadgen.attack.driver import Limits
from loadgen.attack.plan import Plan, Traffic
from loadgen.attack.records import CHUNK, Records
from loadgen.attack.schedule import blocks, choose_owners, schedule, trace, write_trace
from loadgen.attack.targets import Request
from tests.loadgen.test_arrivals import ks


@pytest.mark.parametrize("name", ["plain.txt", "packed.csv.gz"])
def test_a_trace_is_read_as_it_is(tmp_path, name):
    path = tmp_path / name
    opener = gzip.open if name.endswith("gz") else open
    with opener(path, "wt") as file:
        file.write("planned,target\n0.5,1\n0.5,0\r\n2.25\n\n7,x\n")
    assert np.concatenate(list(trace(path))).tolist() == [0.5, 0.5, 2.25, 7.0]
    assert np.concatenate(list(trace(path, 7.0))).tolist() == [0.5, 0.5, 2.25]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\n0.5\n", "line 2: 0.5 does not come after 1"),
        ("1\nx\n", "line 2: not a number: 'x'"),
        ("-1\n", "line 1"),
        ("nan\n", "line 1"),
        ("1\ninf\n", "line 2"),
    ],
)
def test_a_trace_that_is_none_is_refused_by_line(tmp_path, text, message):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        list(trace(path))


def test_half_a_gzip_file_is_reported(tmp_path):
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(b"1\n" * 10_000)[:-20])
    with pytest.raises(ValueError, match="cut short"):
        list(trace(path))


def plan(**given):
    """A plan of a thousand requests or so."""
    traffic = Traffic(**({"rate": 100.0, "duration": 10.0} | given.pop("traffic", {})))
    request = given.pop("request", Request(("http://a/", "http://b/")))
    return Plan(traffic, request, Limits(), **({"weights": (3.0, 1.0)} | given))


def test_the_same_seed_gives_the_same_plan_and_a_run_can_be_sent_again(tmp_path):
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    sized = Request(("http://a/", "http://b/"), "POST", sizes=True)
    first = plan(request=sized, body_law="exp", body_bytes=500.0, processes=3).draw(folders[0])
    again = plan(request=sized, body_law="exp", body_bytes=500.0, processes=3).draw(folders[1])
    for column in ("planned", "target", "body", "owner"):
        assert getattr(first, column).tolist() == getattr(again, column).tolist(), column
    write_trace(first, tmp_path / "schedule.csv.gz")
    traced = {"arrivals": f"trace:{tmp_path / 'schedule.csv.gz'}", "rate": None, "duration": None}
    replayed = plan(traffic=traced, request=sized, body_law="exp", body_bytes=500.0, processes=3).draw(folders[2])
    for column in ("planned", "target", "body", "owner"):
        assert getattr(first, column).tolist() == getattr(replayed, column).tolist(), column
    assert len(first) == len(schedule(Poisson(100.0, Random("1/arrivals")), 10.0)), "never rescaled"


def test_urls_bodies_and_processes_get_what_they_should(tmp_path):
    made = plan(
        traffic={"duration": 100.0},
        body_law="exp",
        body_bytes=500.0,
        processes=4,
        request=Request(("http://a/", "http://b/"), "POST", sizes=True),
    ).draw(tmp_path)
    n = len(made)
    assert abs((made.target == 0).mean() - 0.75) < 4 * math.sqrt(0.75 * 0.25 / n)
    assert abs(made.body.mean() - 500.0) < 4 * 500.0 / math.sqrt(n)
    for owner, count in Counter(made.owner.tolist()).items():
        assert abs(count / n - 0.25) < 4 * math.sqrt(0.25 * 0.75 / n), owner


def test_the_parts_of_a_split_plan_are_poisson_and_together_they_are_the_plan():
    records = Records(schedule(Poisson(200.0, Random(7)), 100.0))
    choose_owners(records, 4, Random(8))
    shares = [list(records.share(owner)) for owner in range(4)]
    assert sorted(row for share in shares for row in share) == list(enumerate(records.planned.tolist()))
    for share in shares:
        distance, bound = ks(-np.expm1(-50.0 * np.diff([at for _, at in share])))
        assert distance < bound


def test_a_plan_longer_than_a_block_has_no_seam(tmp_path):
    whole = np.concatenate(list(blocks(Poisson(CHUNK / 4, Random(3)), 10.0)))
    assert len(whole) > 2 * CHUNK
    assert np.all(np.diff(whole) > 0)
    records = Records.create(tmp_path, blocks(Poisson(CHUNK / 4, Random(3)), 10.0))
    assert records.planned.tolist() == whole.tolist()
    assert np.isnan(records.sent).all()
    records.sent[5] = 1.5
    records.release(CHUNK)
    assert Records.open(tmp_path).sent[5] == records.sent[5] == 1.5, "files keep what memory forgets"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "--rate and --duration, or --stages"),
        ({"rate": 1.0}, "--rate and --duration"),
        ({"rate": 1.0, "stages": "1s@1"}, "use either --stages or --rate"),
        ({"arrivals": "trace:x", "rate": 1.0}, "without --rate and --stages"),
        ({"arrivals": "sine", "stages": "1s@1"}, "stages need poisson"),
        ({"rate": 1.0, "duration": -1.0}, "duration must be positive"),
        ({"rate": 1.0, "duration": math.nan}, "duration must be positive"),
        ({"rate": 1.0, "duration": 1.0, "warmup": -1.0}, "warm-up must not be negative"),
        ({"rate": 0.0, "duration": 1.0}, "rate must be positive"),
    ],
)
def test_traffic_that_cannot_be_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        Traffic(**given)


def test_a_warm_up_must_leave_something(tmp_path):
    with pytest.raises(ValueError, match="leaves nothing of 10 s"):
        plan(traffic={"warmup": 10.0}).draw(tmp_path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"urls": ("ftp://a/",)}, "must begin with http"),
        ({"urls": ("http:///x",)}, "name a host"),
        ({"urls": ("http://a:99999/",)}, "from 1 to 65535"),
        ({"urls": ("http://user:secret@a/",)}, "must not contain a user or a password"),
        ({"urls": ("http://ä.test/",)}, "is not a host name"),
        ({"urls": ("http://a..b/",)}, "is not a host name"),
        ({"headers": (("a", "€"),)}, "the header a holds a character that cannot be sent"),
        ({"urls": ("http://a/b c",)}, "percent-encoded"),
        ({"urls": ("http://a/ü",)}, "percent-encoded"),
        ({"urls": ()}, "from 1 to 255"),
        ({"method": "GE T"}, "method"),
        ({"headers": (("a b", "c"),)}, "NAME: VALUE"),
        ({"headers": (("a", "b\r\nc: d"),)}, "NAME: VALUE"),
        ({"headers": (("Content-Length", "3"),)}, "is set automatically"),
    ],
)
def test_requests_that_cannot_be_sent_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        Request(**({"urls": ("http://a/",)} | given))


def test_what_is_sent_byte_by_byte():
    request = Request(("http://a.test:81/x?y=1",), "POST", (("X-A", "1"), ("host", "other")), b"hello")
    assert request.bytes_for(0, 0) == (
        b"POST /x?y=1 HTTP/1.1\r\nUser-Agent: lased-loadgen\r\nAccept: */*\r\nX-A: 1\r\nhost: other\r\n"
        b"Content-Length: 5\r\n\r\nhello"
    )
    plain = Request(("http://a.test/",), keepalive=False).bytes_for(0, 0)
    assert plain.startswith(b"GET / HTTP/1.1\r\nHost: a.test\r\n")
    assert plain.endswith(b"Connection: close\r\n\r\n")
    assert b"Content-Length: 0" in Request(("http://a/",), "POST").bytes_for(0, 0)
    sized = Request(("http://a/",), "PUT", sizes=True).bytes_for(0, 3)
    assert sized.endswith(b"Content-Length: 3\r\n\r\n\0\0\0")


def test_a_request_carries_its_number_if_a_header_is_named_for_it():
    numbered = Request(("http://a.test/",), number="X-Request-Number")
    assert b"\r\nX-Request-Number: 7\r\n" in numbered.bytes_for(0, 0, 7)
    assert numbered.bytes_for(0, 0, 7).endswith(b"\r\n\r\n")
    assert not numbered.alike
    assert Request(("http://a.test/",)).alike
    with pytest.raises(ValueError, match="header of the request's number cannot be named 'Content-Length'"):
        Request(("http://a.test/",), number="Content-Length")


def test_what_is_kept_of_a_plan_holds_no_secret():
    kept = plan(request=Request(("http://a/", "http://b/"), headers=(("Authorization", "Bearer s3cret"),))).as_json()
    assert "s3cret" not in str(kept)
    assert kept["headers"] == ["Authorization"]
