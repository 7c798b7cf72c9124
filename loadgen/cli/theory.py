"""The command `theory`: exact values, with a subcommand for each kind of question."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.table import Table
from typer.core import TyperGroup

from dispatcher.errors import ConfigError
from loadgen.cli.app import Json, Servers, app, console, numbers, output, print_json, whole_numbers
from loadgen.experiments import theory_exact, theory_hamacher, theory_whittle

Capacity = Annotated[int, typer.Option(min=1, max=200, help="K, jobs that the server holds.")]
SlotRate = Annotated[float, typer.Option(help="μ, services a slot.")]
Discount = Annotated[float, typer.Option(min=0, max=1, help="Discount; 1 for the average reward.")]
Ages = Annotated[int, typer.Option(min=1, max=100_000, help="Slots since the server was picked, the largest.")]


class _Modes(TyperGroup):
    """Subcommands of which `all` is the default. The name may stand before or behind the options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # click takes the first argument for the subcommand, so its name is moved there.
        mode = next((word for word in args if word in self.commands), None)
        if mode is not None:
            args = [mode, *(word for word in args if word != mode)]
        elif args[:1] not in (["-h"], ["--help"]):
            args = ["all", *args]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        # The options of `all` can be used without its name, so they belong to the help of the command.
        super().format_help(ctx, formatter)
        default = self.commands["all"]
        default.format_help(default.context_class(default, info_name="[all]", parent=ctx), formatter)


theory = typer.Typer(
    cls=_Modes,
    subcommand_metavar="[WHAT] [OPTIONS]",
    help="Exact values: rules and the optimum for two or three pools, Whittle's indices, Hamacher's sum.",
    epilog="Examples: lased-loadgen theory --lam 3.6 --mu 1,5; lased-loadgen theory --lam 300"
    " --curve infinite:seconds=0.05 --curve fcfs:servers=4,seconds=0.02;"
    " lased-loadgen theory hamacher --rates .5,.5; lased-loadgen theory whittle_finite --capacity 5",
)
app.add_typer(theory, name="theory")


def _show(report: dict[str, Any], table: Callable[[dict[str, Any]], Table], as_json: bool) -> None:
    if as_json:
        print_json(report)
    else:
        output().print(table(report))


def _exact(mode: str) -> Callable[..., None]:
    """Return the command for one mode of `theory_exact`; they all have the same options."""

    def command(
        unknown: Annotated[str | None, typer.Argument(hidden=True, metavar="")] = None,
        lam: Annotated[float | None, typer.Option(help="Requests a second.")] = None,
        mu: Annotated[str | None, typer.Option(help="Rates by pool, services a second and server.")] = None,
        servers: Servers = None,
        guess: Annotated[str | None, typer.Option(help="Estimates by pool, for SED that uses them (esed).")] = None,
        curve: Annotated[
            list[str] | None,
            typer.Option(
                help="A pool by its throughput curve, instead of --mu and --servers; repeat for each pool:"
                " fcfs:servers=4,seconds=0.04 (or ps), infinite:seconds=0.05, soft:a=0.1,seconds=0.02,"
                " retrograde:servers=4,peak=8,seconds=0.02, limited:servers=2,limit=64,seconds=0.005, table:10,18,24."
                " `seconds` is the mean time of a request that is alone; all but a table take limit=N."
            ),
        ] = None,
        ties: Annotated[
            str, typer.Option(help="The pool that a rule takes among equal scores: first, last, fastest or slowest.")
        ] = "first",
        side: Annotated[
            int, typer.Option(min=0, help="States of a pool that are calculated; 0: as many as necessary.")
        ] = 0,
        as_json: Json = False,
    ) -> None:
        if unknown is not None:  # the name of a mode was taken off before, so the word is none
            modes = (*theory_exact.MODES, "hamacher", "whittle_finite", "whittle_blocking")
            raise ConfigError(f"WHAT must be one of {', '.join(modes)}, not {unknown!r}")
        if lam is None or (mu is None) is (curve is None):
            raise ConfigError("--lam is needed, and either --mu or a --curve for each pool")
        if curve and servers:
            raise ConfigError("--servers goes with --mu; a --curve holds its own")
        with console.status("solving"):
            report = theory_exact.report(
                mode,
                lam,
                numbers(mu, "mu") if mu else (),
                whole_numbers(servers, "servers") if servers else (),
                numbers(guess, "guess") if guess else (),
                side,
                curve or (),
                ties,
            )
        _show(report, theory_exact.table, as_json)

    return command


for _mode, _help in theory_exact.MODES.items():
    theory.command(_mode, help=f"{_help} Exponential services, Poisson arrivals, two or three pools.")(_exact(_mode))


@theory.command()
def hamacher(
    rates: Annotated[
        str,
        typer.Option(help="By pool, the probability that a full pool empties in a slot; with --lam services a second."),
    ] = "",
    lam: Annotated[float | None, typer.Option(help="Attempts a second, at random instants.")] = None,
    as_json: Json = False,
) -> None:
    """Compute the share of requests that pools of capacity one accept: Hamacher's sum and its bound."""
    _show(theory_hamacher.report(numbers(rates, "rates"), lam), theory_hamacher.table, as_json)


@theory.command("whittle_finite")
def whittle_finite(
    capacity: Capacity = 10, rate: SlotRate = 1.0, beta: Discount = 1.0, ages: Ages = 20, as_json: Json = False
) -> None:
    """Compute Whittle's index of a server that a pick fills up, and that is seen only when it is picked."""
    _show(theory_whittle.report_finite(capacity, rate, beta, ages), theory_whittle.table, as_json)


@theory.command("whittle_blocking")
def whittle_blocking(
    capacity: Capacity = 10, rate: SlotRate = 1.0, beta: Discount = 1.0, ages: Ages = 20, as_json: Json = False
) -> None:
    """Compute Whittle's index of a server that a pick fills only when it is empty."""
    _show(theory_whittle.report_blocking(capacity, rate, beta, ages), theory_whittle.table, as_json)
