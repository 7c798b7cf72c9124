"""The X-Forwarded-* and Forwarded headers that pools receive."""

from ipaddress import ip_network

import pytest

from dispatcher.http.forwarded import Peer
from dispatcher.http.request import forward_request, parse_request
from tests.proxy.harness import (
    get,
)

TRUSTED = [ip_network("10.0.0.0/8"), ip_network("fd00::/8")]


def origin_lines(address, *fields, host="shop.example", trusted=TRUSTED):
    """Return the header lines about the origin that the pool receives."""
    request = parse_request(get("/", *fields, host=host))
    head = forward_request(request, Peer(address, 5000, b"http", trusted)).decode("latin1")
    return [line for line in head.split("\r\n") if line.lower().startswith(("x-f", "x_f", "forwarded"))]


def test_headers_of_an_untrusted_client_are_replaced():
    claims = [
        "X-Forwarded-For: 6.6.6.6",
        "X-Forwarded-Proto: https",
        "X-Forwarded-Host: evil",
        "Forwarded: for=6.6.6.6",
        "X_Forwarded_For: 6.6.6.6",
        "x_forwarded-for: 6.6.6.6",
    ]
    assert origin_lines("192.0.2.1", *claims) == [
        "X-Forwarded-For: 192.0.2.1",
        "X-Forwarded-Proto: http",
        "X-Forwarded-Host: shop.example",
        'Forwarded: for="192.0.2.1:5000";host="shop.example";proto=http',
    ]


@pytest.mark.parametrize("address", ["10.1.2.3", "::ffff:10.1.2.3"])
def test_headers_of_a_trusted_proxy_are_extended(address):
    claims = [
        "X-Forwarded-For: 6.6.6.6",
        "X-Forwarded-For: 7.7.7.7",
        "X-Forwarded-Proto: https",
        "X-Forwarded-Host: front.example",
        'Forwarded: for="[2001:db8::1]"',
    ]
    node = f'"[{address}]:5000"' if ":" in address else f'"{address}:5000"'
    assert origin_lines(address, *claims) == [
        f"X-Forwarded-For: 6.6.6.6, 7.7.7.7, {address}",
        "X-Forwarded-Proto: https",
        "X-Forwarded-Host: front.example",
        f'Forwarded: for="[2001:db8::1]", for={node};host="shop.example";proto=http',
    ]


def test_an_ipv6_address_is_bare_in_x_forwarded_for_and_quoted_in_forwarded():
    assert origin_lines("fd00::1%eth0", trusted=())[::3] == [
        "X-Forwarded-For: fd00::1",
        'Forwarded: for="[fd00::1]:5000";host="shop.example";proto=http',
    ]


@pytest.mark.parametrize(
    "nominated", ["x-forwarded-for", "X-Forwarded-For, X-Forwarded-Proto", "forwarded, X-FORWARDED-HOST"]
)
def test_a_connection_header_cannot_remove_the_dispatchers_headers(nominated):
    assert len(origin_lines("192.0.2.1", f"Connection: {nominated}")) == 4
