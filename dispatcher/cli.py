"""The command line and the composition root: the only file that may know all parts."""

from __future__ import annotations

import asyncio
import inspect
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import structlog
import typer
from prometheus_client import disable_created_metrics

from dispatcher import __version__, registry
from dispatcher.config import DEFAULT_POLICY_HINT, Config, load
from dispatcher.errors import ConfigError, DispatcherError
from dispatcher.long_episodes import first_episode_warning
from dispatcher.persistence import state_file as state
from dispatcher.reload import Plan
from dispatcher.service import Service
from dispatcher.top import watch

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Route HTTP requests to pools of unknown speed, and learn the speeds meanwhile.",
)

ADMIN = "http://127.0.0.1:9090"
SWITCH = 0.0005  # seconds for which a thread, as of a scrape, may keep the loop from running; Python's own is 0.005
SPARE_FILES = 256  # open files beside those of connections

ConfigFile = Annotated[Path | None, typer.Option("--config", "-c", metavar="F", help="The configuration, TOML.")]
PoolFlags = Annotated[
    list[str] | None,
    typer.Option("--pool", metavar="NAME=URL", help="A pool; repeat for more. Replaces those of the file."),
]
PolicyFlag = Annotated[
    str | None,
    typer.Option("--policy", metavar="NAME", help="A registered policy, or module:attr; without one, curve."),
]


@app.command(epilog="Example: lased-dispatcher serve --pool a=http://127.0.0.1:9001 --pool b=http://127.0.0.1:9002")
def serve(
    config: ConfigFile = None,
    pool: PoolFlags = None,
    policy: PolicyFlag = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where clients connect; port 0 takes a free one.")
    ] = None,
    admin: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where metrics and state are served.")] = None,
    rows: Annotated[str | None, typer.Option(metavar="F", help="Write one JSON line for each decision to F.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the policy's dice.")] = None,
) -> None:
    """Run the dispatcher until SIGINT or SIGTERM, which drain it; a second one ends it at once. SIGHUP reloads."""
    flags = {"policy.name": policy, "listen": listen, "admin": admin, "rows": rows, "seed": seed}
    loaded = configuration(config, pool, flags)
    log_to_stderr()
    allow_open_files(loaded.settings.limits.connections)
    disable_created_metrics()  # type: ignore[no-untyped-call]
    sys.setswitchinterval(SWITCH)
    try:
        import uvloop

        run: Any = uvloop.run
    except ImportError:
        run = asyncio.run
    run(_serve(loaded, lambda: configuration(config, pool, flags)))


async def _serve(config: Config, again: Callable[[], Config]) -> None:
    await Service(config, again).run_until_signal()


@app.command(epilog="Example: lased-dispatcher check --config dispatcher.toml")
def check(config: ConfigFile = None, pool: PoolFlags = None, policy: PolicyFlag = None) -> None:
    """Validate a configuration and print what would run."""
    loaded = configuration(config, pool, {"policy.name": policy})
    plan = Plan(loaded)
    typer.echo(f"policy  {loaded.policy.name} {options_text(loaded.policy.options)}".rstrip())
    if loaded.policy_is_default:
        typer.echo(f"        {DEFAULT_POLICY_HINT}")
    typer.echo(f"listen  {loaded.listen}\nadmin   {loaded.admin}")
    for entry in loaded.pools:
        rate = "" if entry.true_rate is None else f", true rate {entry.true_rate:g}"
        servers = f"{entry.servers} server{'s' * (entry.servers > 1)}"
        typer.echo(f"pool    {entry.name} at {entry.url}, {servers}, guess {entry.guess:g} a second{rate}")
    for key in ("shadow", "state_file", "rows", "trusted_proxies"):
        if getattr(loaded, key):
            typer.echo(f"{key}  {getattr(loaded, key)}")
    if loaded.access_log.path:
        typer.echo(f"access_log  {loaded.access_log.path}, {loaded.access_log.format}")
    typer.echo(f"admin_token  {'set' if loaded.token else 'none'}")
    if loaded.shared_at:
        typer.echo(f"state_url  set: what is learned is shared, as of the fleet {loaded.state_name}")
    for section in ("limits", "timeouts", "health", "queue", "retry", "reports"):
        typer.echo(f"{section:<7} {options_text(getattr(loaded, section).model_dump())}")
    if warning := first_episode_warning(loaded, plan.policy, remembered_pools(loaded)):
        typer.echo(f"warning: {warning}")
    typer.echo("ok")


@app.command(epilog="Example: lased-dispatcher top --admin http://127.0.0.1:9090")
def top(
    admin: Annotated[str, typer.Option(metavar="URL", help="The admin side of a running dispatcher.")] = ADMIN,
    once: Annotated[bool, typer.Option("--once", help="One picture, then end.")] = False,
) -> None:
    """Show what a running dispatcher believes and does, until Ctrl-C. Set LASED_ADMIN_TOKEN if it wants a token."""
    watch(admin if "//" in admin else f"http://{admin}", os.environ.get("LASED_ADMIN_TOKEN", ""), once)


@app.command()
def policies() -> None:
    """List every policy with its options and their defaults."""
    for name in registry.registered():
        maker = registry.factory(name)
        typer.echo(f"{name:<21} {registry.summary_of(maker)}")
        options = registry.options_of(maker)
        if options:
            shown = {key: p.default for key, p in options.items() if p.default is not inspect.Parameter.empty}
            typer.echo(f"{'':<12} options: {options_text(shown)}")


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def remembered_pools(config: Config) -> set[str]:
    """The pools of which `serve` would restore an estimate from the state file."""
    if not config.state_file:
        return set()
    try:
        return set(state.load(Path(config.state_file))[state.RATES])
    except ConfigError:  # `serve` ignores such a file
        return set()


def options_text(options: dict[str, Any]) -> str:
    return ", ".join(
        f"{key} = {value!r}" if value in ("", []) else f"{key} = {value}" for key, value in options.items()
    )


def configuration(path: Path | None, pools: list[str] | None, flags: dict[str, Any]) -> Config:
    """The configuration in force. Raises ConfigError."""
    given = {key: value for key, value in flags.items() if value is not None}
    if pools:
        given["pools"] = [pool_flag(text) for text in pools]
    return load(path, os.environ, given)


def pool_flag(text: str) -> dict[str, str]:
    name, equals, url = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"--pool must be NAME=URL, as in small=http://127.0.0.1:9001, not {text!r}")
    return {"name": name, "url": url}


def allow_open_files(connections: int) -> None:
    """Raise the soft limit of open files as far as it goes; warn where that is too low for so many clients."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < connections + SPARE_FILES:
        structlog.get_logger().warning("few_open_files", allowed=hard, connections=connections, hint="see ulimit -n")


def log_to_stderr() -> None:
    """One line an event: readable on a terminal, JSON elsewhere."""
    terminal = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info if not terminal else structlog.processors.StackInfoRenderer(),
            structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def main() -> NoReturn:
    """Run a command; errors in one line, exit 2 for usage and configuration, 1 for the rest."""
    try:
        sys.exit(app(standalone_mode=False, prog_name="lased-dispatcher") or 0)
    except (ConfigError, typer.TyperException) as error:
        message = error.format_message() if isinstance(error, typer.TyperException) else str(error)
        if message:  # there is none where the help was printed instead
            print(f"error: {message}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    except DispatcherError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
