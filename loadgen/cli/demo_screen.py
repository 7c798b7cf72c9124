"""What the command `demo` shows: the pools and their estimates while it runs, and a summary at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from loadgen.attack.driver import Attack
from loadgen.attack.summary_text import milliseconds
from loadgen.experiments.live.demo import Z95, PolicyRun, Sample, Scene, rate_ratio

LINE_INTERVAL_SECONDS = 5.0  # between two lines where there is no terminal


class Screen(Protocol):
    """Shows a demo while it runs."""

    def __enter__(self) -> Screen: ...
    def __exit__(self, *error: object) -> None: ...
    def update(self, policy: str, sample: Sample, attack: Attack) -> None: ...


class PlainScreen:
    """Prints a line from time to time, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_line_at = 0.0
        self._policy = ""

    def __enter__(self) -> PlainScreen:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def update(self, policy: str, sample: Sample, attack: Attack) -> None:
        if policy != self._policy:
            self._policy, self._next_line_at = policy, LINE_INTERVAL_SECONDS
        if sample.at >= self._next_line_at:
            self._next_line_at += LINE_INTERVAL_SECONDS
            regret = sample.state["regret"]["total"]
            ratio = _ratio_text(*rate_ratio(sample.state))
            self._console.print(f"{policy} {sample.at:4.0f} s: {attack.sent} sent, regret {regret}, rate ratio {ratio}")


class LiveScreen:
    """Redraws the pools, their estimates and the regret on a terminal."""

    def __init__(self, scene: Scene, console: Console) -> None:
        self._scene = scene
        self._progress = Progress(
            TextColumn("{task.description:<8}"), BarColumn(40), TextColumn("{task.fields[text]}"), TimeRemainingColumn()
        )
        self._bars = {
            policy: self._progress.add_task(policy, total=scene.duration, text="") for policy in scene.policies
        }
        self._live = Live(self._progress, console=console, refresh_per_second=8)

    def __enter__(self) -> LiveScreen:
        self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.__exit__(None, None, None)

    def update(self, policy: str, sample: Sample, attack: Attack) -> None:
        text = f"{attack.sent} sent, {attack.in_flight} open, regret {sample.state['regret']['total']}"
        self._progress.update(self._bars[policy], completed=min(sample.at, self._scene.duration), text=text)
        panel = Panel(self._pools(sample.state), title=f"policy {policy}", expand=False)
        self._live.update(Group(panel, self._progress))

    def _pools(self, state: Mapping[str, Any]) -> Group:
        table = Table(box=None, padding=(0, 2))
        for column in ("pool", "true", "guess", "estimate", "95 %", "seen", "open"):
            table.add_column(column, justify="left" if column == "pool" else "right", no_wrap=True)
        for pool in state["pools"]:
            low, high = pool["interval"]
            seen = pool["observations"]
            estimate = (f"{pool['estimate']:.1f}/s", f"{low:.1f} … {high:.1f}") if seen else ("the guess", "unknown")
            rates = (f"{pool['true_rate']:g}/s", f"{pool['guess']:g}/s")
            table.add_row(pool["name"], *rates, *estimate, str(seen), str(pool["in_flight"]))
        regret, episode = state["regret"], state["episode"]
        causes = ", ".join(f"{count} by {cause}" for cause, count in regret.items() if cause != "total" and count)
        return Group(
            table,
            Text(f"\nrate ratio {_ratio_text(*rate_ratio(state))}, truly {self._scene.true_ratio:g}"),
            Text(f"regret     {regret['total']} of {state['decisions']} decisions{': ' + causes if causes else ''}"),
            Text(f"episode    {episode['number']}{', exploring' if episode['explored'] else ''}"),
        )


def _ratio_text(ratio: float, error: float | None, without: str = "") -> str:
    """Return a rate ratio with its 95 % interval. without: the text that replaces the interval of an unknown error."""
    return f"{ratio:.2f}" + (f" ± {Z95 * error:.2f}" if error else without)


def demo_table(scene: Scene, runs: Sequence[PolicyRun]) -> Table:
    """Return the summary of all policies as a table."""
    title = f"{scene.lam:g} requests a second for {scene.duration:g} s, the same for both"
    if len(runs) < len(scene.policies) or any(run.ended_early for run in runs):
        title += "; ended early, so do not compare"
    table = Table(title=title, title_justify="left")
    table.add_column("")
    summaries = [run.summary() for run in runs]
    for run in runs:
        table.add_column(run.policy, justify="right")

    def row(label: str, *cells: str) -> None:
        table.add_row(label, *cells)

    ratios = ((s["rate_ratio_estimate"], s["rate_ratio_standard_error"]) for s in summaries)
    row("requests completed", *(str(s["requests"]) for s in summaries))
    row("mean response", *(milliseconds(s["mean_response"]) for s in summaries))
    row("p99 response", *(milliseconds(s["p99_response"]) for s in summaries))
    for pool in scene.pools:
        row(f"share of {pool.name} ({pool.rate:g}/s)", *(f"{s['shares'][pool.name]:.1%}" for s in summaries))
    row(f"rate ratio (truly {scene.true_ratio:g})", *(_ratio_text(*ratio, " (never tried)") for ratio in ratios))
    row("episodes", *(str(s["episodes"]) for s in summaries))
    row("forced trials", *(str(s["explorations"]) for s in summaries))
    row("regret: wrong decisions", *(str(s["regret"]) for s in summaries))
    row("… in the second half", *(str(s["regret_second_half"]) for s in summaries))
    return table


def demo_verdict(scene: Scene, runs: Sequence[PolicyRun]) -> str:
    """Return a sentence for each policy that says whether it has learned the rates."""
    sentences = []
    for run in runs:
        summary, n = run.summary(), max(1, len(run.rows))
        error = summary["rate_ratio_standard_error"]
        wrong, late = summary["regret"], summary["regret_second_half"]
        if error and abs(summary["rate_ratio_estimate"] - scene.true_ratio) <= 3 * error and late <= 0.01 * n:
            text = f"{run.policy} learned the rates: {wrong} wrong decisions of {n}, {late} in the second half."
        elif wrong > 0.9 * n:
            text = f"{run.policy} never learned the rates: {wrong} wrong decisions of {n}."
        else:
            text = f"{run.policy}: {wrong} wrong decisions of {n}, {late} in the second half."
        sentences.append(text)
    return "\n".join(sentences)
