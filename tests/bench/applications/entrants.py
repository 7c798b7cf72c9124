"""This module lists the load balancers. No configuration contains speeds, weights or numbers of servers.

A policy of ours is a `lased-dispatcher serve` with this policy; the others run with one worker or one processor, as
loadgen.experiments.live.balancers starts them.
"""

import contextlib
from dataclasses import dataclass

from dispatcher import registry
from dispatcher.errors import ConfigError
from loadgen.experiments.live.backends import started
from loadgen.experiments.live.balancers import balancer_system, parse

OURS = (("curve", ["--policy", "curve"]), ("lased", ["--policy", "lased"]))
OTHERS = (
    ("nginx", "nginx/least_conn"),
    ("HAProxy", "haproxy/leastconn"),
    ("Envoy", "envoy/least_request"),
    ("Traefik", "traefik/leasttime"),
    ("Caddy", "caddy/least_conn"),
)


@dataclass(frozen=True)
class Entrant:
    """This is one balancer. `arguments` are those of `serve` if it is ours; else balancers.parse reads `balancer`."""

    name: str
    arguments: tuple[str, ...] = ()
    balancer: str = ""

    @property
    def ours(self):
        return not self.balancer

    def lacking(self):
        """Returns why it cannot run here; empty if it can."""
        if self.balancer:
            balancer, _ = parse(self.balancer)
            return "" if balancer.program() else f"{balancer.name} is not installed: {balancer.install}"
        policy = dict(zip(self.arguments[::2], self.arguments[1::2], strict=True)).get("--policy")
        return "" if policy is None or policy in registry.registered() else f"no policy {policy!r} is registered"

    @contextlib.asynccontextmanager
    async def system(self, addresses, folder):
        """Runs it in front of these addresses inside the block and yields its URL. Raises BackendError."""
        if self.balancer:
            async with balancer_system(*parse(self.balancer), addresses, folder) as url:
                yield url
            return
        pools = [f"--pool=pool-{i}=http://{address}" for i, address in enumerate(addresses)]
        listen = ["--listen=127.0.0.1:0", "--admin=127.0.0.1:0"]
        async with started("dispatcher", ["serve", *listen, *pools, *self.arguments], folder) as child:
            yield f"http://{await child.line('listening on')}"


ENTRANTS = (
    *(Entrant(name, arguments=tuple(arguments)) for name, arguments in OURS),
    *(Entrant(name, balancer=text) for name, text in OTHERS),
)


def select(text):
    """Returns entrants by name, as in "curve,nginx". Raises ConfigError."""
    known = {entrant.name.lower(): entrant for entrant in ENTRANTS}
    names = [part.strip().lower() for part in text.split(",")]
    for name in names:
        if name not in known:
            raise ConfigError(f"--entrants: there is no entrant {name!r}; there are: {', '.join(known)}")
    return tuple(dict.fromkeys(known[name] for name in names))
