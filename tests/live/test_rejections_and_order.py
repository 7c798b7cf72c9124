"""Real processes: pools that hold one request, and pools that serve the shortest job first."""

import re

import numpy as np
import pytest

from dispatcher.core.rng import stream
from loadgen.attack.arrivals import Poisson
from loadgen.attack.driver import Attack
from loadgen.attack.records import Records
from loadgen.attack.schedule import choose_targets, schedule
from loadgen.attack.targets import Request
from loadgen.experiments.live.backends import LivePoolSpec, WorkerOptions, live_system

pytestmark = pytest.mark.slow


def plan(rate, seconds):
    return Records(schedule(Poisson(rate, stream(1, "arrivals")), seconds))


async def test_rejections_of_full_pools_are_learned_from_and_resent():
    """Two of three are resent elsewhere, so few come back to the client; no pool is ejected."""
    pools = [LivePoolSpec(name, rate, rate) for name, rate in (("a", 100.0), ("b", 50.0), ("c", 25.0))]
    extra = 'retry = { on = ["503"], budget = 1.0 }'
    shares = {}
    for resent in (False, True):
        common = WorkerOptions(arguments=["--capacity", "1"])
        async with live_system("exp3_ix", pools, common=common, extra=extra if resent else "") as system:
            records = plan(60.0, 8.0)
            await Attack(system.url, records).run()
            assert set(records.status.tolist()) <= {200, 503}
            shares[resent] = float((records.status == 200).mean())
    hamacher = 175 / (175 + 60)
    error = (hamacher * (1 - hamacher) / 480) ** 0.5
    assert abs(shares[False] - hamacher) < 4 * error + 0.03  # it learns meanwhile
    assert shares[True] > shares[False] + 0.08


async def test_pools_that_learn_their_order_let_quick_jobs_pass():
    law = "logistic:1=2.2,/report=-4.4"
    pools = [LivePoolSpec("a", 60.0, 60.0, rounds=173.0), LivePoolSpec("b", 60.0, 60.0, rounds=173.0)]
    means = {}
    for order in ("fcfs", "esept"):
        common = WorkerOptions(law, arguments=["--discipline", order])
        async with live_system("lased", pools, common=common) as system:
            records = plan(96.0, 12.0)
            choose_targets(records, (0.8, 0.2), stream(1, "targets"))
            await Attack(Request((f"{system.url}/thumb", f"{system.url}/report")), records).run()
            for worker in system.workers.values():
                await worker.stop()
                served, longest = re.search(r"served (\d+), .* longest ([\d.]+) ms", worker.log.read_text()).groups()
                assert int(served) > 100
                assert float(longest) < 1e3 * float(np.nanmax(records.response))
        assert records.completed.all()
        means[order] = [float(records.response[records.target == k].mean()) for k in (0, 1)]
    assert means["esept"][0] < 0.8 * means["fcfs"][0]
    assert means["esept"][0] < means["esept"][1] / 2
