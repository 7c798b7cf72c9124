"""Targets, hosts and methods of requests."""

import pytest

from tests.proxy.harness import (
    EVIL,
    Recorder,
    assert_refused_unseen,
    assert_unharmed,
    front,
    get,
    original_lines,
    status,
    values,
)


async def seen_as(line, host, *raws):
    """Each of these requests arrives as this request line with this Host, and is answered."""
    script = Recorder()
    async with front(script) as f:
        client = await f.client()
        for raw in raws:
            await client.send(raw)
            assert status(await client.message()) == 200
        assert [original_lines(head)[:2] for head in script.heads] == [[line, b"Host: " + host]] * len(raws)
        assert [values(head, b"host") for head in script.heads] == [[host]] * len(raws)
        assert [values(head, b"x-forwarded-host") for head in script.heads] == [[host] if host else []] * len(raws)
        await assert_unharmed(f)


def plain(target, host=b"a", method=b"GET", version=b"1.1"):
    return b"%b %b HTTP/%b\r\nHost: %b\r\n\r\n" % (method, target, version, host)


@pytest.mark.parametrize(
    "target",
    [
        b"/100%",
        b"/%zz",
        b"/%",
        b"/%2",
        b"/a%00b",
        b"/%2e%2e/%2F",
        b"/%41%7e",
        b"/?%=%&%zz",
        b"/a%0d%0aX:%20y",
        b"/%c3%28",
        b"/%25%32%35",
        b"/a+b%20c",
    ],
)
async def test_T03_percent_signs_pass_as_they_are(target):
    await seen_as(b"GET " + target + b" HTTP/1.1", b"a", plain(target), plain(target))


@pytest.mark.parametrize(
    "target",
    [
        b"/a//b",
        b"//a",
        b"//",
        b"///",
        b"//evil.test/x",
        b"/a/../b",
        b"/./a/.",
        b"/..",
        b"/a/%2e%2e//",
        b"/a;b//;c",
        b"/?a//b",
        b"/a??b",
        b"/?",
        b"/:80",
        b"/http://b/",
        b'/a|b^c`d{e}\\f"<>',
    ],
)
async def test_T04_paths_are_not_tidied_up(target):
    await seen_as(b"GET " + target + b" HTTP/1.1", b"a", plain(target), plain(target))


@pytest.mark.parametrize(
    ("target", "upstream", "host"),
    [
        (b"http://h?t=1", b"/?t=1", b"h"),
        (b"http://h", b"/", b"h"),
        (b"http://h:81", b"/", b"h:81"),
        (b"http://h?", b"/?", b"h"),
        (b"http://h/?", b"/?", b"h"),
        (b"HTTP://H?a/b", b"/?a/b", b"H"),
        (b"https://h?x=http://i/", b"/?x=http://i/", b"h"),
        (b"http://[::1]:9?x", b"/?x", b"[::1]:9"),
    ],
)
async def test_T07_an_absolute_target_without_a_path_gets_one(target, upstream, host):
    await seen_as(b"GET " + upstream + b" HTTP/1.1", host, plain(target), plain(target, host=host))


@pytest.mark.parametrize(
    ("target", "upstream", "host"),
    [
        (b"http://h:80/p", b"/p", b"h:80"),
        (b"http://h/p//q/../%zz?a=b", b"/p//q/../%zz?a=b", b"h"),
        (b"http://h//p", b"//p", b"h"),
        (b"hTTp://h-1.x_y.test/", b"/", b"h-1.x_y.test"),
        (b"http://[::1]/p", b"/p", b"[::1]"),
        (b"https://h/p", b"/p", b"h"),
    ],
)
@pytest.mark.parametrize("other", [b"other", b"other:99", b"", b"H:80"])
async def test_T08_the_authority_of_an_absolute_target_wins(target, upstream, host, other):
    await seen_as(b"GET " + upstream + b" HTTP/1.1", host, plain(target, host=other))


async def test_T08_the_authority_of_an_absolute_target_is_the_host_of_http_1_0():
    await seen_as(b"GET /p HTTP/1.1", b"h", b"GET http://h/p HTTP/1.0\r\n\r\n")


@pytest.mark.parametrize(
    "target",
    [
        b"http://u@h/p",
        b"http://u:p@h/p",
        b"http:///p",
        b"http://",
        b"http://?q",
        b"http://h:x/",
        b"http://h:80:80/",
        b"http://[::1/p",
        b"http://[::1]x/p",
        b"http://h,i/p",
        b"http://h\\@i/p",
        b"ftp://h/p",
        b"ws://h/p",
        b"http:/h",
        b"http:h",
        b"http//h/p",
        b"://h/p",
        b"http://h /p",
        b"http://h#f",
        b"http://h/#f",
        b"http://h\xff/",
    ],
)
async def test_T08_an_absolute_target_that_is_no_http_url_is_refused(target):
    async with front(Recorder()) as f:
        await assert_refused_unseen(f, plain(target) + EVIL, 400)


@pytest.mark.parametrize("target", [b"http://:80/p", b"http://:/p", b"http://:80", b"https://:443/"])
async def test_T08_a_url_without_a_host_is_refused(target):
    """RFC 9110 4.2.1: an http URL with an empty host must be rejected as invalid."""
    async with front(Recorder()) as f:
        await assert_refused_unseen(f, plain(target), 400)


@pytest.mark.parametrize("host", [b"", b"\r\nHost: h", b"a b"])
async def test_T08_an_absolute_target_does_not_excuse_a_bad_host(host):
    """RFC 9112 3.2: no Host, two, or an invalid one is a 400, whatever the form of the target."""
    raw = plain(b"http://h/p", host=host) if host else b"GET http://h/p HTTP/1.1\r\n\r\n"
    async with front(Recorder()) as f:
        await assert_refused_unseen(f, raw, 400)


@pytest.mark.parametrize(
    ("target", "upstream", "host"),
    [
        (b"*", b"*", b"a"),
        (b"http://h", b"*", b"h"),
        (b"http://h:81", b"*", b"h:81"),
        (b"http://h/", b"/", b"h"),
        (b"http://h?q", b"/?q", b"h"),
        (b"/", b"/", b"a"),
        (b"/*", b"/*", b"a"),
    ],
)
async def test_T09_options_of_the_whole_server_stays_that(target, upstream, host):
    """RFC 9112 3.2.4: an absolute target with neither path nor query is sent on as `*`."""
    await seen_as(b"OPTIONS " + upstream + b" HTTP/1.1", host, plain(target, method=b"OPTIONS"))


@pytest.mark.parametrize("method", [b"GET", b"POST", b"HEAD", b"options", b"QUERY", b"OPTION"])
@pytest.mark.parametrize("target", [b"*", b"**", b"*/", b"*?q"])
async def test_T09_an_asterisk_is_for_options_alone(method, target):
    async with front(Recorder()) as f:
        await assert_refused_unseen(f, plain(target, method=method) + EVIL, 400)


@pytest.mark.parametrize("method", [b"GET", b"OPTIONS", b"PROPFIND"])
@pytest.mark.parametrize(
    "target",
    [
        b"admin",
        b"admin/x",
        b"./admin",
        b"../",
        b"?q",
        b"a:443",
        b"a",
        b"127.0.0.1",
        b"%2fadmin",
        b"\\admin",
        b";a",
        b"@a/",
        b"[::1]:80",
        b"http",
        b"&",
    ],
)
async def test_T10_a_relative_target_is_refused(target, method):
    async with front(Recorder()) as f:
        await assert_refused_unseen(f, plain(target, method=method) + EVIL, 400)


@pytest.mark.parametrize(
    "rest",
    [
        b"Host: a\r\n\r\n",
        b"Host: a\r\nContent-Length: 5\r\n\r\nhello",
        b"Host: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"Host: a\r\nConnection: keep-alive\r\n\r\n\x16\x03\x01",
        b"Host: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
    ],
)
@pytest.mark.parametrize("target", [b"a:443", b"a", b"/", b"http://a/", b"*", b"[::1]:443"])
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
async def test_T11_connect_is_refused_and_its_connection_not_used_again(target, rest, version):
    async with front(Recorder()) as f:
        await assert_refused_unseen(f, b"CONNECT %b HTTP/%b\r\n%b" % (target, version, rest) + EVIL, 405, 400)


@pytest.mark.parametrize("method", [b"connect", b"Connect", b"CONNECTX"])
async def test_T11_what_only_looks_like_connect_opens_no_tunnel(method):
    """Methods differ by case (RFC 9110 9.1): this is an unknown one, sent on as it is, its target judged like any."""
    async with front(Recorder()) as f:
        await assert_refused_unseen(f, plain(b"a:443", method=method) + EVIL, 400)
    await seen_as(method + b" / HTTP/1.1", b"a", plain(b"/", method=method))


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize(
    "target",
    [
        b"/\xff\xfe",
        b"/\xc3\xa9",
        b"/a?b=\xe9",
        b"/\x80",
        b"/\x00",
        b"/\x01",
        b"/\x1b",
        b"/\x7f",
        b"/\t",
        b"/\x0b",
        b"/\r",
        b"/a\x0cb",
    ],
)
@pytest.mark.parametrize("method", [b"GET", b"QUERY", b"FOO"])
async def test_T12_bytes_that_no_target_may_have_are_always_refused(target, size, method):
    async with front(Recorder()) as f:
        await assert_refused_unseen(f, plain(target, method=method) + EVIL, 400, size=size)


@pytest.mark.parametrize(
    "host",
    [
        b"a b",
        b"a/b",
        b"a@b",
        b"http://a",
        b"a:b",
        b"a:80:80",
        b"a:-1",
        b"a:+80",
        b"a: 80",
        b"[::1",
        b"::1",
        b"[::1]x",
        b"[]",
        b"[g]",
        b"a?b",
        b"a\\b",
        b"a\xe9",
        b"\xc3\xa9",
        b"a|b",
        b'"a"',
        b"<a>",
        b"{a}",
        b"a\tb",
        b"a^b",
        b"a`b",
        b"a\x00",
        b"a\x7f",
        b"a\r\nHost: a",
        b"a\r\nX: y\r\nhost: b",
        b"\r\nHost: ",
        b"a\r\nHost:",
    ],
)
async def test_T13_there_must_be_one_valid_host(host):
    async with front(Recorder()) as f:
        await assert_refused_unseen(f, plain(b"/", host=host) + EVIL, 400)
        assert len(f.pools[0].connections) == 1, "only the fresh request's"


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX-Host: a\r\n\r\n",
        b"GET / HTTP/1.2\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        b"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.0\r\nHost: a b\r\n\r\n",
    ],
)
async def test_T13_no_host_is_refused_and_in_http_1_0_two_are(raw):
    async with front(Recorder()) as f:
        await assert_refused_unseen(f, raw + EVIL, 400)


@pytest.mark.parametrize(
    "host",
    [
        b"a",
        b"A.Test.",
        b"a:80",
        b"a:",
        b"1.2.3.4:8080",
        b"[::1]",
        b"[2001:db8::1]:80",
        b"a_b",
        b"xn--bcher-kva.test",
        b"a-b.c~d",
        b"%41",
    ],
)
async def test_T13_a_valid_host_passes_byte_for_byte(host):
    await seen_as(b"GET / HTTP/1.1", host, plain(b"/", host=host), plain(b"/", host=host + b" \t"))


async def test_T13_an_empty_host_is_one_and_http_1_0_needs_none():
    """RFC 9112 3.2: the field is empty where the target has no authority, and it is sent on so."""
    await seen_as(b"GET / HTTP/1.1", b"", plain(b"/", host=b""), plain(b"/", host=b""))
    await seen_as(b"GET / HTTP/1.1", b"", b"GET / HTTP/1.0\r\n\r\n")


METHODS = [
    b"QUERY",
    b"PROPFIND",
    b"M-SEARCH",
    b"PATCH",
    b"MKCALENDAR",
    b"FOO",
    b"get",
    b"Post",
    b"HEADS",
    b"!#$%&'*+-.^_`|~09",
]


@pytest.mark.parametrize("method", METHODS)
async def test_T15_any_token_is_a_method_and_passes_unchanged(method):
    script = Recorder()
    async with front(script) as f:
        client = await f.client()
        with_body = b"%b /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello" % method
        await client.send(with_body + plain(b"/x", method=method) + with_body)
        for _ in range(3):
            assert (await client.message())[1] == b"ok"
        assert [original_lines(head)[0] for head in script.heads] == [method + b" /x HTTP/1.1"] * 3
        assert script.raw_bodies == [b"hello", b"", b"hello"]
        await assert_unharmed(f)


@pytest.mark.parametrize(
    "method", [b"G T", b"G,T", b"G@T", b"G:T", b"G/T", b'"GET"', b"G\xe9T", b"G\x00T", b"(GET)", b"", b"GET\t"]
)
async def test_T15_a_method_that_is_no_token_is_refused(method):
    async with front(Recorder()) as f:
        await assert_refused_unseen(f, plain(b"/x", method=method) + EVIL, 400)


async def test_T15_no_method_target_or_host_makes_a_metric_of_its_own():
    script = Recorder()
    async with front(script) as f:

        def series():
            return {
                (sample.name, *sorted(sample.labels.items()))
                for family in f.service.registry.collect()
                for sample in family.samples
            }

        client = await f.client()
        await client.send(get())
        assert status(await client.message()) == 200
        await f.wait_idle()
        before = series()
        for i in range(100):
            await client.send(plain(b"/%d" % i, host=b"h%d" % i, method=b"M%d" % i))
            assert status(await client.message()) == 200
        await f.wait_idle()
        assert len(script.heads) == 101
        assert series() == before
        await assert_unharmed(f)


@pytest.mark.parametrize(
    "target", [b"/#x", b"/a#", b"/?q#x", b"/a#b?c", b"#", b"#x", b"http://h/#x", b"http://h/p?q#x", b"/%23#", b"/##"]
)
@pytest.mark.parametrize("method", [b"GET", b"OPTIONS", b"FOO"])
async def test_T16_a_fragment_does_not_belong_in_a_target(target, method):
    async with front(Recorder()) as f:
        await assert_refused_unseen(f, plain(target, method=method) + EVIL, 400)


@pytest.mark.parametrize("host", [b"a,b", b"a, b", b",", b"a;b c", b"a#b", b"a,", b",a", b"a,a"])
async def test_T16_a_list_of_hosts_is_none(host):
    """A comma is legal in a URL's host by the grammar alone; no host has one, and a list here is two Hosts joined."""
    async with front(Recorder()) as f:
        await assert_refused_unseen(f, plain(b"/", host=host) + EVIL, 400)


@pytest.mark.parametrize(
    ("target", "upstream", "host"),
    [
        ("http://other:81/p?q", b"/p?q", b"other:81"),
        ("http://other?q", b"/?q", b"other"),
        ("HTTP://o", b"/", b"o"),
    ],
)
async def test_an_absolute_target_overrules_host(target, upstream, host):
    script = Recorder()
    async with front(script) as f:
        await f.ask(get(target, host="ignored"))
    assert script.requests[0][0].startswith(b"GET " + upstream + b" HTTP/1.1\r\nHost: " + host + b"\r\n")
