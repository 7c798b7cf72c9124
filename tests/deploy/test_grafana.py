"""The Grafana dashboards: in step with their code, clean by the rules of Grafana's dashboard-linter, and every query
answered by a real Prometheus that scrapes a live dispatcher.

There is no Grafana here: how it draws them is not tested.
"""

import asyncio
import contextlib
import json
import math
import re
import shutil
import socket

import aiohttp
import numpy as np
import promql_parser
import pytest
import yaml
from grafana_foundation_sdk.models import units
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from deploy.grafana import dashboards
from dispatcher.persistence.redis_sync import SharedLearning
from loadgen.attack.progress import RunProgress
from loadgen.attack.prometheus import RunMetrics
from loadgen.attack.records import Records
from loadgen.experiments.live.backends import LivePoolSpec, WorkerOptions, live_fleet, started
from tests.proxy.harness import front

FILES = sorted(dashboards.FOLDER.glob("*.json"))
PAGES = {file.stem: json.loads(file.read_text()) for file in FILES}
PROVISIONING = dashboards.FOLDER.parent / "provisioning"
UNITS = {unit for name, unit in vars(units).items() if isinstance(unit, str) and not name.startswith("_")}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
EVERYTHING = {"$job": ".+", "$instance": ".+", "$pool": ".+"}
COUNTED = {"rate", "irate", "increase"}


def panels():
    for name, page in PAGES.items():
        for panel in page["panels"]:
            if panel["type"] != "row":
                yield pytest.param(panel, id=f"{name}/{panel['title']}")


def queries():
    """Every query of every panel and annotation, with the labels that its legend shows."""
    for name, page in PAGES.items():
        for panel in page["panels"]:
            for target in panel.get("targets", ()):
                words = re.findall(r"{{(\w+)}}", target["legendFormat"])
                yield pytest.param(target["expr"], words, id=f"{name}/{panel['title']}/{target['refId']}")
        for note in page["annotations"]["list"]:
            words = re.findall(r"{{(\w+)}}", note["titleFormat"])
            yield pytest.param(note["expr"], words, id=f"{name}/{note['name']}")


def variables():
    for name, page in PAGES.items():
        for variable in page["templating"]["list"]:
            if variable["type"] == "query":
                yield pytest.param(variable, id=f"{name}/{variable['name']}")


def filled(query, interval="5m"):
    """A query as Prometheus gets it, with everything selected."""
    for word, value in {**EVERYTHING, "$__rate_interval": interval, "$__range": interval}.items():
        query = re.sub(re.escape(word) + r"\b", value, query)
    return query


def asked_of(variable):
    """Selector and label of label_values(selector, label)."""
    return re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]).groups()


def nodes(expr, above=()):
    """The parts of an expression, each with those that it is inside of, the nearest last."""
    yield expr, above
    for key in ("lhs", "rhs", "expr", "vector_selector"):
        if (part := getattr(expr, key, None)) is not None:
            yield from nodes(part, (*above, expr))
    for part in getattr(expr, "args", None) or ():
        yield from nodes(part, (*above, expr))


def selectors(query):
    """The vector selectors of a query that is filled in, each with what it is inside of."""
    found = list(nodes(promql_parser.parse(query)))
    return [(node, above) for node, above in found if isinstance(node, promql_parser.VectorSelector)]


# -- files


def test_the_files_are_what_the_code_makes():
    made = dashboards.rendered()
    assert sorted(made) == FILES
    for file, text in made.items():
        assert file.read_text() == text, f"{file.name} is not in step: run `make dashboards`"


def test_uids_are_fixed_and_the_dashboards_find_each_other():
    assert [page["uid"] for page in PAGES.values()] == ["lased-learning", "lased-load-test", "lased-overview"]
    for page in PAGES.values():
        (link,) = page["links"]
        assert (link["type"], link["includeVars"], link["keepTime"]) == ("dashboards", True, True)
        assert all(set(link["tags"]) <= set(other["tags"]) for other in PAGES.values())


@pytest.mark.parametrize("name", PAGES)
def test_panels_are_numbered_and_do_not_overlap(name):
    panels = PAGES[name]["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    taken = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells


def test_provisioning_fits_the_dashboards():
    sources = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yaml").read_text())
    (source,) = sources["datasources"]
    assert (source["type"], source["uid"], source["url"]) == (
        "prometheus",
        "lased-prometheus",
        "http://prometheus:9090",
    )
    assert sources["apiVersion"] == 1
    providers = yaml.safe_load((PROVISIONING / "dashboards" / "lased.yaml").read_text())
    (provider,) = providers["providers"]
    assert (provider["type"], provider["allowUiUpdates"]) == ("file", False)
    assert providers["apiVersion"] == 1


# -- the linter's rules, by their names


@pytest.mark.parametrize("name", PAGES)
def test_template_datasource_rule(name):
    (variable,) = [v for v in PAGES[name]["templating"]["list"] if v["type"] == "datasource"]
    assert (variable["name"], variable["label"], variable["query"]) == ("datasource", "Data source", "prometheus")


@pytest.mark.parametrize("wanted", ["job", "instance", "pool"])
@pytest.mark.parametrize("name", PAGES)
def test_template_job_and_instance_rules(name, wanted):
    (variable,) = [v for v in PAGES[name]["templating"]["list"] if v["name"] == wanted]
    assert variable["type"] == "query"
    assert variable["datasource"] == SOURCE
    assert variable["label"] == wanted.capitalize()
    assert (variable["multi"], variable["includeAll"], variable["allValue"]) == (True, True, ".+")


@pytest.mark.parametrize("variable", list(variables()))
def test_template_label_promql_and_on_time_change_reload_rules(variable):
    selector, _ = asked_of(variable)
    promql_parser.parse(filled(selector))
    assert variable["refresh"] == 2


@pytest.mark.parametrize("name", PAGES)
def test_uneditable_dashboard_rule(name):
    assert PAGES[name]["editable"] is False


@pytest.mark.parametrize("panel", list(panels()))
def test_panel_datasource_title_description_units_and_targets_rules(panel):
    assert panel["datasource"] == SOURCE
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert panel["targets"]
    for target in panel["targets"]:
        assert target["datasource"] == SOURCE
        assert target["legendFormat"]


@pytest.mark.parametrize(("query", "words"), list(queries()))
def test_target_promql_job_and_instance_rules(query, words):
    found = selectors(filled(query))
    assert found
    for selector, _ in found:
        matchers = [(m.name, m.op, m.value) for m in selector.matchers.matchers]
        for label in ("job", "instance"):
            assert (label, promql_parser.MatchOp.Re, ".+") in matchers, selector.prettify()
    assert query.count('job=~"$job"') == query.count('instance=~"$instance"') == len(found)


@pytest.mark.parametrize(("query", "words"), list(queries()))
def test_target_rate_interval_and_counter_agg_rules(query, words):
    assert not re.search(r"\[(?!\$__rate_interval\]|\$__range\])", query)
    for selector, above in selectors(filled(query)):
        ranged = bool(above) and isinstance(above[-1], promql_parser.MatrixSelector)
        function = above[-2].func.name if ranged else None
        if selector.name.endswith(("_total", "_bucket", "_sum", "_count")):
            assert function in COUNTED, selector.prettify()
        else:
            assert function is None, f"{selector.name} is a gauge"
    assert not re.search(r"\brate\([^[]*\[\$__range]", query)


# -- the metrics


async def test_every_metric_and_label_in_a_query_exists():
    known = {}
    families = []
    for policy in ("curve", "lased", "exp3_ix"):
        async with front(None, None, policy=policy, shadow=["jsq"], retry={"attempts": 1}) as f:
            host, port = f.admin
            await f.ask(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n")
            async with aiohttp.ClientSession() as session, session.get(f"http://{host}:{port}/metrics") as answer:
                families += text_string_to_metric_families(await answer.text())
    shared_metrics = CollectorRegistry()
    SharedLearning("redis://localhost", "test", lambda: None, shared_metrics)
    families += [*shared_metrics.collect(), *f.service.registry.collect()]
    families += RunMetrics(RunProgress(Records(np.zeros(1))), 1.0).registry.collect()
    for family in families:
        ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        labels = {label for sample in family.samples for label in sample.labels}
        for end in ends:
            known.setdefault(family.name + end, set()).update(labels)
    used = set()
    for query, *_ in [case.values for case in queries()] + [(asked_of(c.values[0])[0],) for c in variables()]:
        for selector, _ in selectors(filled(query)):
            assert selector.name in known, query
            used.add(selector.name)
            labels = {m.name for m in selector.matchers.matchers} - {"job", "instance"}
            if known[selector.name]:  # none before the first event
                assert labels <= known[selector.name], query
    told = {name for name in known if not name.endswith(("_sum", "_count", "_bucket", "_created"))}
    assert told - used == set(), "metrics that no dashboard shows"


# -- all of it, live


PROMETHEUS = """
global: {{ scrape_interval: 500ms, scrape_timeout: 500ms }}
scrape_configs:
  - job_name: lased
    static_configs: [{{ targets: ["{target}", "{generator}"] }}]
"""
POOLS = (LivePoolSpec("small", 100.0, 100.0), LivePoolSpec("large", 200.0, 20.0))
TRIAL = 'shadow = ["jsq", "optimistic"]'


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.asynccontextmanager
async def prometheus(target, generator, folder):
    """A running Prometheus that scrapes a dispatcher and a load generator; yields its address."""
    config, log, port = folder / "prometheus.yml", folder / "prometheus.log", free_port()
    config.write_text(PROMETHEUS.format(target=target, generator=generator))
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
            stdout=out,
            stderr=asyncio.subprocess.STDOUT,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        async with aiohttp.ClientSession() as session:
            for _ in range(200):
                assert process.returncode is None, log.read_text()
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(f"{url}/-/ready") as answer:
                        if answer.status == 200:
                            break
                await asyncio.sleep(0.05)
            else:
                pytest.fail(f"Prometheus did not become ready: {log.read_text()}")
        yield url
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 5)
        except TimeoutError:
            process.kill()
            await process.wait()


async def get(session, url, **params):
    async with session.get(url, params=params) as answer:
        found = await answer.json()
    assert found["status"] == "success", found
    return found["data"]


async def flowing(session, url, traffic):
    """Wait until Prometheus has seen some seconds of traffic."""
    for _ in range(100):
        assert traffic.process.returncode is None, traffic.log.read_text()
        found = await get(session, f"{url}/api/v1/query", query="sum(rate(lased_requests_total[5s]))")
        if found["result"] and float(found["result"][0]["value"][1]) > 30:
            return
        await asyncio.sleep(0.2)
    pytest.fail(f"no traffic was seen: {found}")


@pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus is not installed (Debian: prometheus)")
@pytest.mark.slow
async def test_every_query_returns_data_on_a_live_and_healthy_system(tmp_path):
    empty, wrong, generator = [], [], f"127.0.0.1:{free_port()}"
    async with (
        live_fleet("lased", POOLS, 1, common=WorkerOptions(load_report="json"), extra=TRIAL) as (system,),
        prometheus(system.admin.removeprefix("http://"), generator, tmp_path) as url,
        aiohttp.ClientSession() as session,
    ):
        attack = ["attack", system.url, "--rate", "60", "--duration", "30", "--metrics", generator]
        async with started("loadgen", attack, tmp_path) as traffic:  # ended when all has been asked
            await flowing(session, url, traffic)
            for case in queries():
                query, words = case.values
                if any(
                    word in query for word in ("lased_shared_learning", "lased_pool_rejections", "lased_choice_prob")
                ):
                    continue  # there is no Redis here, and the policy does not draw
                found = await get(session, f"{url}/api/v1/query", query=filled(query, "5s"))
                if not any(math.isfinite(float(series["value"][1])) for series in found["result"]):
                    empty.append((case.id, found["result"]))
                for series in found["result"]:
                    if missing := set(words) - set(series["metric"]):
                        wrong.append((case.id, missing))
            for case in variables():
                selector, label = asked_of(case.values[0])
                if not await get(session, f"{url}/api/v1/label/{label}/values", **{"match[]": filled(selector)}):
                    empty.append((case.id, []))
            failed = await get(session, f"{url}/api/v1/query", query='sum(lased_requests_total{code="5xx"})')
            assert traffic.process.returncode is None, "the traffic ended before the questions did"
    assert empty == []
    assert wrong == []
    assert float(failed["result"][0]["value"][1]) == 0
