"""`lased-dispatcher top`: shows estimates and decisions of a running dispatcher in a terminal."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dispatcher.errors import ConfigError, StartError

READ_TIMEOUT_SECONDS = 10.0  # the dispatcher sends an event every second


def events(url: str, token: str) -> Iterator[tuple[str, Any]]:
    """Yield (name, data) of each event that the dispatcher sends.

    url: its admin address.
    token: the admin token; empty for none.
    Raises ConfigError if the token is wrong or missing, StartError if there is no dispatcher or it has ended.
    """
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        request = urllib.request.Request(url.rstrip("/") + "/events", headers=headers)  # noqa: S310 - the user's own address
        with urllib.request.urlopen(request, timeout=READ_TIMEOUT_SECONDS) as stream:  # noqa: S310
            if stream.headers.get_content_type() != "text/event-stream":
                raise StartError(f"{url} is not the admin address of a dispatcher; the default port of that is 9090")
            name = ""
            for line in stream:
                key, _, value = line.decode().rstrip("\n").partition(": ")
                if key == "event":
                    name = value
                elif key == "data":
                    yield name, json.loads(value)
    except urllib.error.HTTPError as error:
        if error.code == 401:
            fault = "refused the token in LASED_ADMIN_TOKEN" if token else "requires a token: set LASED_ADMIN_TOKEN"
            raise ConfigError(f"the admin side {fault}") from error
        raise StartError(f"{url} responded with status {error.code}: is it the admin address?") from error
    except (OSError, ValueError) as error:
        raise StartError(f"cannot read from {url}: {getattr(error, 'reason', error)}") from error
    raise StartError(f"{url} has closed the connection")


def picture(now: dict[str, Any], before: dict[str, Any] | None) -> Group:
    """One screen.

    now: the present state.
    before: the state one second ago, for shares and rates; None if there is none.
    """
    episode, regret = now["episode"], now["regret"]
    head = f"lased-dispatcher {now['version']}  policy {now['policy']['name']}  {now['decisions']:,} decisions"
    if before is not None:
        head += f"  {now['decisions'] - before['decisions']} a second"
    if episode:
        head += f"  episode {episode['number']}, open {episode['open_seconds']:.0f} s"
    if regret:
        head += f"  regret {regret['total']:,}"
    table = Table(box=None, pad_edge=False)
    curves = any(pool.get("curve") for pool in now["pools"])
    learned = ("answers in", "keeps up to", "at most a second") if curves else ("estimate", "95 %")
    for name in ("pool", "state", "in flight", "share", *learned, "true", "seen"):
        table.add_column(name, justify="left" if name in ("pool", "state") else "right", no_wrap=True)
    routed = {pool["name"]: pool["routed"] for pool in before["pools"]} if before else {}
    new = {pool["name"]: pool["routed"] - routed.get(pool["name"], pool["routed"]) for pool in now["pools"]}
    for pool in now["pools"]:
        table.add_row(
            pool["name"],
            Text(pool["verdict"], style="green" if pool["verdict"] == "up" else "bold red"),
            f"{pool['in_flight']} of {pool['servers']}" if pool["servers"] > 1 else str(pool["in_flight"]),
            f"{new[pool['name']] / sum(new.values()):.0%}" if sum(new.values()) else "–",
            *(_curve(pool["curve"]) if curves else (_number(pool["estimate"]), _interval(*pool["interval"]))),
            _number(pool["true_rate"]),
            f"{pool['observations']:,.0f}" if pool["observations"] is not None else "–",
        )
    last = Table(box=None, pad_edge=False, title="last decisions", title_justify="left", title_style="dim")
    for name in ("number", "to", "why", "in flight then"):
        last.add_column(name, justify="right" if name == "number" else "left")
    for row in now["last"]:
        why = "forced trial" if row["phase"] == "explore" else "least score" if row["scores"] else "policy's choice"
        wrong = f"; wrong: {row['wrong_because_of']}" if row["wrong_because_of"] else ""
        there = ", ".join(f"{pool['name']} {pool['in_flight']}" for pool in row["pools"][:6])
        last.add_row(str(row["n"]), row["pool"], why + wrong, there)
    return Group(Text(head, style="bold"), "", table, "", last)


def _curve(curve: dict[str, Any] | None) -> list[str]:
    """Cells for service time, capacity and throughput, each with its 95 % interval."""
    if curve is None:
        return ["–"] * 3
    cells = []
    for name, scale, unit in (("service_seconds", 1e3, " ms"), ("capacity", 1.0, ""), ("throughput", 1.0, "")):
        low, high = curve[name]["interval"]
        shown = _interval(low * scale, high * scale if high is not None else None)
        cells.append(f"{curve[name]['value'] * scale:.3g}{unit} ({shown})")
    return cells


def _interval(low: float | None, high: float | None) -> str:
    return "–" if low is None else f"{low:.3g}–{f'{high:.3g}' if high is not None else '∞'}"


def _number(x: float | None) -> str:
    return "–" if x is None else f"{x:.4g}"


def watch(url: str, token: str, once: bool) -> None:
    """Show the state of a dispatcher until Ctrl-C.

    once: print one screen and end.
    Raises ConfigError or StartError, as `events` does.
    """
    console, before = Console(), None
    try:
        with Live(console=console, auto_refresh=False, screen=not once and console.is_terminal) as live:
            for name, data in events(url, token):
                if name == "now":
                    if once and before is None:
                        before = data  # shares are differences of two states
                        continue
                    live.update(picture(data, before), refresh=True)
                    before = data
                    if once:
                        return
    except KeyboardInterrupt:
        return  # Ctrl-C is the way to end the display
