"""The command line of the dispatcher: `serve`, `check`, `policies`, `top` and `version`."""

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
from dispatcher.config import load
from dispatcher.errors import ConfigError, DispatcherError
from dispatcher.long_episodes import first_episode_warning
from dispatcher.persistence import state_file as state
from dispatcher.reload import prepare
from dispatcher.service import Service
from dispatcher.settings import DEFAULT_POLICY_HINT, Config
from dispatcher.top import watch

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Route HTTP requests to pools of unknown speed, and learn their speeds from the responses.",
)

DEFAULT_ADMIN_URL = "http://127.0.0.1:9090"
# Metrics are rendered in a thread, which can block the event loop for this long at a time. Python's default is 0.005.
THREAD_SWITCH_SECONDS = 0.0005
SPARE_FILES = 256  # open files in addition to those of client connections

ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="F", help="The configuration file, in TOML.")
]
PoolFlags = Annotated[
    list[str] | None,
    typer.Option(
        "--pool", metavar="NAME=URL", help="A pool; repeat the option for more pools. They replace those of the file."
    ),
]
PolicyFlag = Annotated[
    str | None,
    typer.Option("--policy", metavar="NAME", help="A registered policy, or module:attr. The default is curve."),
]


@app.command(epilog="Example: lased-dispatcher serve --pool a=http://127.0.0.1:9001 --pool b=http://127.0.0.1:9002")
def serve(
    config: ConfigFile = None,
    pool: PoolFlags = None,
    policy: PolicyFlag = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address for clients; port 0 takes a free port.")
    ] = None,
    admin: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address of metrics, state and control.")
    ] = None,
    rows: Annotated[str | None, typer.Option(metavar="F", help="Write one JSON line for each decision to F.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the random generator of the policy.")] = None,
) -> None:
    """Run the dispatcher. SIGINT or SIGTERM drains it, a second one ends it at once; SIGHUP reloads it."""
    flags = {"policy.name": policy, "listen": listen, "admin": admin, "rows": rows, "seed": seed}
    loaded = configuration(config, pool, flags)
    log_to_stderr()
    allow_open_files(loaded.limits.connections)
    disable_created_metrics()  # type: ignore[no-untyped-call]
    sys.setswitchinterval(THREAD_SWITCH_SECONDS)
    try:
        import uvloop

        run: Any = uvloop.run
    except ImportError:
        run = asyncio.run
    run(_serve(loaded, lambda: configuration(config, pool, flags)))


async def _serve(config: Config, read_config: Callable[[], Config]) -> None:
    await Service(config, read_config).run_until_signal()


@app.command(epilog="Example: lased-dispatcher check --config dispatcher.toml")
def check(config: ConfigFile = None, pool: PoolFlags = None, policy: PolicyFlag = None) -> None:
    """Validate a configuration and print what would run."""
    loaded = configuration(config, pool, {"policy.name": policy})
    prepared = prepare(loaded)
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
    if warning := first_episode_warning(loaded, prepared.policy, saved_pools(loaded)):
        typer.echo(f"warning: {warning}")
    typer.echo("ok")


@app.command(epilog="Example: lased-dispatcher top --admin http://127.0.0.1:9090")
def top(
    admin: Annotated[
        str, typer.Option(metavar="URL", help="Admin address of a running dispatcher.")
    ] = DEFAULT_ADMIN_URL,
    once: Annotated[bool, typer.Option("--once", help="Print one screen and end.")] = False,
) -> None:
    """Show estimates and decisions of a running dispatcher until Ctrl-C. LASED_ADMIN_TOKEN gives the admin token."""
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


def saved_pools(config: Config) -> set[str]:
    """The pools whose rates `serve` would restore from the state file."""
    if not config.state_file:
        return set()
    try:
        return set(state.load(Path(config.state_file))[state.RATES])
    except ConfigError:  # `serve` ignores an unusable file too
        return set()


def options_text(options: dict[str, Any]) -> str:
    """Options as `key = value, …`; empty values are quoted so that they can be seen."""
    return ", ".join(
        f"{key} = {value!r}" if value in ("", []) else f"{key} = {value}" for key, value in options.items()
    )


def configuration(path: Path | None, pools: list[str] | None, flags: dict[str, Any]) -> Config:
    """The configuration from the file, the environment and the flags. Raises ConfigError.

    pools: values of `--pool`.
    flags: values of the other flags by key; None for a flag that was not used.
    """
    used_flags = {key: value for key, value in flags.items() if value is not None}
    if pools:
        used_flags["pools"] = [pool_flag(text) for text in pools]
    return load(path, os.environ, used_flags)


def pool_flag(text: str) -> dict[str, str]:
    """The entry of `[[pools]]` for a value of `--pool`. Raises ConfigError."""
    name, equals, url = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"--pool must be NAME=URL, as in small=http://127.0.0.1:9001, not {text!r}")
    return {"name": name, "url": url}


def allow_open_files(connections: int) -> None:
    """Raise the soft limit of open files to the hard one, and warn if it is too low for this many connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < connections + SPARE_FILES:
        structlog.get_logger().warning("few_open_files", allowed=hard, connections=connections, hint="see ulimit -n")


def log_to_stderr() -> None:
    """Send log events to stderr, one line each: readable on a terminal, JSON otherwise."""
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
    """Run a command and exit: 0 for success, 2 for an error of usage or configuration, 1 for any other error."""
    try:
        sys.exit(app(standalone_mode=False, prog_name="lased-dispatcher") or 0)
    except (ConfigError, typer.TyperException) as error:
        message = error.format_message() if isinstance(error, typer.TyperException) else str(error)
        if message:  # empty if typer has printed the help instead
            print(f"error: {message}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    except DispatcherError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(1)
    except BrokenPipeError:
        # Python flushes stdout at exit, and would print a traceback for the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
