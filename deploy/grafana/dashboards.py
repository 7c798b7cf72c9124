"""The Grafana dashboards as code. Run as a script, it writes dashboards/*.json beside it; a test keeps both in step.

Overview tells whether the service is well, Learning what the policy believes and what its errors cost, Load test what
a run of `lased-loadgen` did to the dispatcher. What can be empty while all is well falls back to 0; what needs a true
rate or a shadow policy stays empty without.

Needs grafana-foundation-sdk==0.0.21, a development dependency. A plain install of it takes another, older line.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

with warnings.catch_warnings():  # the SDK prefers its model v2, which older Grafanas cannot read
    warnings.simplefilter("ignore", DeprecationWarning)
    from grafana_foundation_sdk.builders import common as look
    from grafana_foundation_sdk.builders import dashboard, prometheus, stat, statetimeline, timeseries
    from grafana_foundation_sdk.cog.builder import Builder
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models import common, units
    from grafana_foundation_sdk.models import dashboard as model

FOLDER = Path(__file__).parent / "dashboards"
TAGS = ["lased", "load-balancing"]
DATASOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")

ALL = 'job=~"$job",instance=~"$instance"'
POOL = ALL + ',pool=~"$pool"'
CONFIGURED = f"and on (job, instance, pool) lased_in_flight{{{POOL}}}"  # pools that left keep a lased_pool_up of 0
UP = f"lased_pool_up{{{POOL}}} {CONFIGURED}"
QUANTILES = (0.5, 0.9, 0.99)
NO_SHADOW = "no shadow policy"
NO_TRUTH = "no true rates configured"
NO_CURVE = "the policy does not learn capacities"
NOT_SHARED = "nothing is shared: no state_url"

Query = tuple[str, str]  # PromQL and legend


# -- queries


def rate(metric: str, by: str = "", where: str = POOL, over: str = "rate") -> str:
    """The summed rate of a counter. over: `increase` for counts in the shown range."""
    span = "$__rate_interval" if over == "rate" else "$__range"
    return f"sum{f' by ({by})' if by else ''} ({over}({metric}{{{where}}}[{span}]))"


def quantile(q: float, metric: str, by: str = "", where: str = POOL) -> str:
    return f"histogram_quantile({q}, {rate(f'{metric}_bucket', f'{by}, le' if by else 'le', where)})"


def quantiles(metric: str, where: str = POOL, word: str = "") -> list[Query]:
    return [(quantile(q, metric, where=where), f"{word} p{q * 100:g}".strip()) for q in QUANTILES]


def mean(metric: str, by: str = "", where: str = POOL) -> str:
    return f"{rate(f'{metric}_sum', by, where)} / {rate(f'{metric}_count', by, where)}"


def or_zero(query: str, **labels: str) -> str:
    """0 where the query finds nothing, with these labels, so that the legend has words to show."""
    zero = "vector(0)"
    for label, word in labels.items():
        zero = f'label_replace({zero}, "{label}", "{word}", "", "")'
    return f"{query} or on () {zero}"


def value(metric: str, by: str = "pool", where: str = POOL, how: str = "sum") -> str:
    return f"{how}{f' by ({by})' if by else ''} ({metric}{{{where}}})"


def share(part: str, of: str, over: str = "") -> str:
    """One rate over another. over: the label that the first has more."""
    return f"{part} / {f'ignoring ({over}) group_left () ' if over else ''}{of}"


# -- panels


Panel = Builder[model.Panel]


def dressed(panel: Any, title: str, text: str, unit: str, queries: Sequence[Query], instant: bool = False) -> Any:
    panel.title(title).description(text).unit(unit).datasource(DATASOURCE)
    for i, (expr, legend) in enumerate(queries):
        query = prometheus.Dataquery().datasource(DATASOURCE).expr(expr).legend_format(legend).ref_id(chr(ord("A") + i))
        panel.with_target(query.instant() if instant else query.range())
    return panel


def graph(title: str, text: str, unit: str, *queries: Query, width: int = 8, empty: str = "") -> timeseries.Panel:
    legend = look.VizLegendOptions().display_mode(common.LegendDisplayMode.TABLE)
    legend.placement(common.LegendPlacement.BOTTOM).show_legend(True).calcs(["mean", "lastNotNull"])
    tooltip = look.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)
    panel = timeseries.Panel().height(8).span(width).legend(legend).tooltip(tooltip)
    panel.line_width(1).fill_opacity(8).show_points(common.VisibilityMode.NEVER).axis_soft_min(0)
    if empty:
        panel.no_value(empty)
    done: timeseries.Panel = dressed(panel, title, text, unit, queries)
    return done


def number(
    title: str, text: str, unit: str, *queries: Query, width: int = 3, empty: str = "", names: bool = False,
    limits: tuple[float, ...] = (), best: str = "low", range_only: bool = False,
) -> stat.Panel:  # fmt: skip
    """One or a few numbers. names: show the legend's text, not the value. limits: where yellow and red begin (best:
    whether low or high values are green). range_only: one value for the whole range, no line behind it."""
    panel = stat.Panel().height(4).span(width)
    panel.reduce_options(look.ReduceDataOptions().calcs(["lastNotNull"]).fields("").values(False))
    panel.graph_mode(common.BigValueGraphMode.NONE if names or range_only else common.BigValueGraphMode.AREA)
    panel.text_mode(common.BigValueTextMode.NAME if names else common.BigValueTextMode.AUTO)
    colours = ("green", "yellow", "red") if len(limits) == 2 else ("green", "red")
    if best == "high":
        colours = colours[::-1]
    starts = (None, *limits)
    steps = [model.Threshold(value=start, color=colour) for start, colour in zip(starts, colours, strict=False)]
    panel.thresholds(dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps))
    panel.color_mode(common.BigValueColorMode.VALUE if limits else common.BigValueColorMode.NONE)
    if empty:
        panel.no_value(empty)
    done: stat.Panel = dressed(panel, title, text, unit, queries, instant=names or range_only)
    return done


def states(title: str, text: str, query: Query, words: tuple[str, str], width: int = 8) -> statetimeline.Panel:
    """A band for each series; words: for 0 and for 1."""
    panel = statetimeline.Panel().height(8).span(width).show_value(common.VisibilityMode.NEVER).line_width(0)
    results = {
        str(i): model.ValueMappingResult(text=word, color=colour, index=i)
        for i, (word, colour) in enumerate(zip(words, ("red", "green"), strict=True))
    }
    panel.mappings([model.ValueMap(options=results)])
    done: statetimeline.Panel = dressed(panel, title, text, units.Short, [query])
    return done


# -- dashboards


def variable(name: str, label: str, query: str, text: str) -> dashboard.QueryVariable:
    made = dashboard.QueryVariable(name).label(label).description(text).query(query).datasource(DATASOURCE)
    made.refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(model.VariableSort.ALPHABETICAL_ASC)
    everything = model.VariableOption(selected=True, text="All", value="$__all")
    return made.multi(True).include_all(True).all_value(".+").current(everything)


def annotation(name: str, colour: str, query: str, title: str) -> dashboard.AnnotationQuery:
    target = prometheus.Dataquery().datasource(DATASOURCE).expr(query).range().ref_id("Anno")
    made = dashboard.AnnotationQuery().name(name).datasource(DATASOURCE).enable(True).hide(False).icon_color(colour)
    return made.expr(query).target(target).title_format(title).tag_keys("instance")


def page(uid: str, title: str, text: str, rows: Sequence[tuple[str, Sequence[Panel]]]) -> model.Dashboard:
    made = dashboard.Dashboard(title).uid(uid).description(text).tags(TAGS).readonly()
    made.time("now-1h", "now").refresh("30s").tooltip(model.DashboardCursorSync.CROSSHAIR).timezone("browser")
    made.with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    made.with_variable(variable("job", "Job", "label_values(lased_build_info, job)", "The scrape job."))
    made.with_variable(
        variable("instance", "Instance", 'label_values(lased_build_info{job=~"$job"}, instance)', "The dispatcher.")
    )
    made.with_variable(variable("pool", "Pool", f"label_values(lased_in_flight{{{ALL}}}, pool)", "Configured pools."))
    made.link(
        dashboard.DashboardLink("LASED").type(model.DashboardLinkType.DASHBOARDS).tags(TAGS[:1]).icon("external link")
        .as_dropdown(False).include_vars(True).keep_time(True).target_blank(False).tooltip("The other dashboards")
    )  # fmt: skip
    made.annotation(annotation("Pool out", "red", f"({UP}) == bool 0", "{{pool}} takes no requests"))
    made.annotation(
        annotation("Reload refused", "orange", f"lased_config_last_reload_success{{{ALL}}} == bool 0", "reload refused")
    )
    for name, panels in rows:
        made.with_row(dashboard.Row(name))
        for panel in panels:
            made.with_panel(panel)
    built = made.build()
    for i, placed in enumerate(built.panels or (), 1):
        placed.id_val = i  # so that links to a panel keep
    for link in built.links or ():
        link.placement = None  # type: ignore[assignment]  # in sight, not in the menu
    return built


def policy() -> stat.Panel:
    return number(
        "Policy", "The routing policy in force.", units.Short,
        (value("lased_policy_info", "policy", ALL, "max"), "{{policy}}"), names=True,
    )  # fmt: skip


def lag() -> timeseries.Panel:
    return graph(
        "Event loop lag", "How late the event loop calls back, looked at four times a second. When it grows, the "
        "dispatcher itself is short of CPU, or something blocks it.", units.Seconds,
        *quantiles("lased_event_loop_lag_seconds", ALL),
    )  # fmt: skip


def refused() -> timeseries.Panel:
    return graph(
        "Refused", "Requests refused without being routed, by reason: a full queue, too many connections, a malformed "
        "request and the like. They are in no other graph of requests.", units.RequestsPerSecond,
        (or_zero(rate("lased_rejected_total", "reason", ALL), reason="none"), "{{reason}}"),
    )  # fmt: skip


def failed_tries() -> timeseries.Panel:
    return graph(
        "Failed tries", "Tries that a pool failed, by pool and reason. A client sees only those that could not be "
        "tried again.", units.CountsPerSecond,
        (or_zero(rate("lased_upstream_errors_total", "pool, reason"), pool="all pools", reason="none"),
         "{{pool}} {{reason}}"),
    )  # fmt: skip


def aborts() -> timeseries.Panel:
    return graph(
        "Clients gone", "Clients that left before their answer was complete.", units.CountsPerSecond,
        (or_zero(rate("lased_client_aborts_total", where=ALL)), "aborts"),
    )  # fmt: skip


def waits() -> timeseries.Panel:
    return graph(
        "Queue wait", "How long requests waited for room in a pool, of those that had to wait; 0 if none had to.",
        units.Seconds,
        *((or_zero(f"({query} >= 0)"), legend) for query, legend in quantiles("lased_queue_wait_seconds", ALL)),
    )  # fmt: skip


def overview() -> model.Dashboard:
    requests, errors = rate("lased_requests_total"), rate("lased_requests_total", where=POOL + ',code="5xx"')
    glance = [
        number("Requests", "Requests answered a second.", units.RequestsPerSecond, (requests, "requests")),
        number("Errors", "Share of the routed requests that were answered with 5xx.", units.PercentUnit,
               (share(errors, requests), "errors"), limits=(0.01, 0.05)),
        number("Duration, p99", "From a request's head to the end of its answer.", units.Seconds,
               (quantile(0.99, "lased_request_duration_seconds"), "p99")),
        number("In flight", "Requests at the pools.", units.Short, (value("lased_in_flight", ""), "in flight")),
        number("In the queue", "Requests that wait for room in a pool.", units.Short,
               (value("lased_queue_length", "", ALL), "waiting"), limits=(1, 100)),
        number("Pools out", "Configured pools that take no requests: ejected, failing their probes, or drained.",
               units.Short, (or_zero(f"sum (({UP}) == bool 0)"), "out"), limits=(1,)),
        number("Reload", "Whether the configuration in force is the last one given; no: the last one was refused.",
               units.BoolYesNo, (value("lased_config_last_reload_success", "", ALL, "min"), "in force"),
               limits=(1,), best="high"),
        policy(),
    ]  # fmt: skip
    traffic = [
        graph("Rate by pool", "Requests answered a second, by the pool that answered.", units.RequestsPerSecond,
              (rate("lased_requests_total", "pool"), "{{pool}}")),
        graph("Rate by status", "Requests answered a second, by class of status.", units.RequestsPerSecond,
              (rate("lased_requests_total", "code"), "{{code}}")),
        graph("Errors by pool", "Share of a pool's requests that were answered with 5xx.", units.PercentUnit,
              (share(rate("lased_requests_total", "pool", POOL + ',code="5xx"'), rate("lased_requests_total", "pool")),
               "{{pool}}")),
        graph("Duration", "From a request's head to the end of its answer, over the selected pools.", units.Seconds,
              *quantiles("lased_request_duration_seconds")),
        graph("Duration by pool, p99", "From a request's head to the end of its answer.", units.Seconds,
              (quantile(0.99, "lased_request_duration_seconds", "pool"), "{{pool}}")),
        graph("Mean duration by pool", "From a request's head to the end of its answer.", units.Seconds,
              (mean("lased_request_duration_seconds", "pool"), "{{pool}}")),
    ]  # fmt: skip
    load = [
        graph("In flight", "Requests sent to a pool and not finished.", units.Short,
              (value("lased_in_flight"), "{{pool}}")),
        graph("Queue length", "Requests that wait because every pool is at its max_in_flight.", units.Short,
              (value("lased_queue_length", "instance", ALL), "{{instance}}")),
        waits(),
    ]  # fmt: skip
    trouble = [
        states("Pools", "Whether each configured pool takes requests.", (f"min by (pool) ({UP})", "{{pool}}"),
               ("out", "up")),
        failed_tries(),
        graph("Retries", "Further tries of a request, by what made them necessary.", units.CountsPerSecond,
              (or_zero(rate("lased_retries_total", "reason", ALL), reason="none"), "{{reason}}")),
        refused(),
        aborts(),
        graph("Faults", "Faults of the policy, after which the request was served all the same, and of the dispatcher "
              "itself. Any is worth a look into the log.", units.CountsPerSecond,
              (or_zero(rate("lased_policy_errors_total", where=ALL)), "policy"),
              (or_zero(rate("lased_internal_errors_total", where=ALL)), "dispatcher")),
    ]  # fmt: skip
    itself = [
        lag(),
        states("Reload", "Whether the configuration in force is the last one given.",
               (value("lased_config_last_reload_success", "instance", ALL, "min"), "{{instance}}"), ("refused", "ok")),
        number("Version", "Of each dispatcher.", units.Short,
               (value("lased_build_info", "instance, version", ALL, "max"), "{{instance}} {{version}}"),
               width=8, names=True).height(8),
    ]  # fmt: skip
    return page(
        "lased-overview", "LASED / Overview", "Rate, errors and duration of all that passes, and the health.",
        [("At a glance", glance), ("Traffic", traffic), ("Load", load), ("Trouble", trouble), ("Dispatcher", itself)],
    )  # fmt: skip


def learning() -> model.Dashboard:
    decisions = rate("lased_decisions_total", where=ALL)
    low, high = f"lased_service_rate_estimate_low{{{POOL}}}", f"lased_service_rate_estimate_high{{{POOL}}}"
    truth, on = f"lased_service_rate_true{{{POOL}}}", "on (job, instance, pool)"
    within = f"({low} <= bool {on} {truth}) * {on} ({high} >= bool {on} {truth})"
    glance = [
        policy(),
        number("Regret", "Decisions in the shown range that the oracle, who knows the true rates, would not have made.",
               units.Short, (rate("lased_regret_decisions_total", where=ALL, over="increase"), "regret"),
               empty=NO_TRUTH, range_only=True),
        number("Regret by cause", "The same, by cause: forced trials, wrong estimates, and queues too long for the "
               "bound to hold.", units.Short,
               (rate("lased_regret_decisions_total", "cause", ALL, "increase"), "{{cause}}"),
               width=6, empty=NO_TRUTH, range_only=True),
        number("Truth in its interval", "Share of the pools whose true rate lies in the 95 % interval now.",
               units.PercentUnit, (f"avg ({within})", "in"), empty=NO_TRUTH),
        number("Episodes", "Episodes that ended in the shown range.", units.Short,
               (rate("lased_episodes_total", where=ALL, over="increase"), "ended"), range_only=True),
        number("Open episode", "Age of the oldest open one; 0 between episodes. It grows without end if the pools "
               "never become idle.", units.Seconds, (value("lased_episode_open_seconds", "", ALL, "max"), "age")),
        number("Agreement", "Share of decisions on which all shadow policies agree with the one in force, at least.",
               units.PercentUnit, (f"min ({agreement()})", "agree"), empty=NO_SHADOW),
    ]  # fmt: skip
    band = graph(
        "Service rate of $pool", "Estimated services per second and server with the 95 % interval, and the true rate "
        "where it is configured. With several dispatchers: the mean estimate and the widest interval.",
        units.OpsPerSecond,
        (value("lased_service_rate_estimate_high", how="max"), "upper bound"),
        (value("lased_service_rate_estimate_low", how="min"), "lower bound"),
        (value("lased_service_rate_estimate", how="avg"), "estimate"),
        (value("lased_service_rate_true", how="avg"), "true rate"),
    )  # fmt: skip
    band.repeat("pool").repeat_direction("h").max_per_row(3).fill_opacity(0).span(24)
    faint = model.DynamicConfigValue(id_val="custom.lineWidth", value=0)
    band.override_by_name("lower bound", [faint])
    band.override_by_name(
        "upper bound",
        [faint, model.DynamicConfigValue(id_val="custom.fillBelowTo", value="lower bound"),
         model.DynamicConfigValue(id_val="custom.fillOpacity", value=20)],
    )  # fmt: skip
    dashes = {"fill": "dash", "dash": [8, 6]}
    band.override_by_name("true rate", [model.DynamicConfigValue(id_val="custom.lineStyle", value=dashes)])
    estimates = [
        graph("Estimate over truth", "1 is a perfect estimate.", units.PercentUnit,
              (f"avg by (pool) (lased_service_rate_estimate{{{POOL}}} / {on} {truth})", "{{pool}}"), empty=NO_TRUTH),
        graph("Rate ratio", "A pool's estimate over that of the first pool in the configuration. Routing depends on "
              "the ratios alone.", units.Short, (value("lased_rate_ratio_estimate", how="avg"), "{{pool}}")),
        graph("Width of the interval", "Upper bound less lower bound, over the estimate.", units.PercentUnit,
              (f"avg by (pool) (({high} - {on} {low}) / {on} lased_service_rate_estimate{{{POOL}}})", "{{pool}}")),
        graph("Service time", "Seconds that a request takes while the pool keeps up, as the policy curve learns it.",
              units.Seconds, (value("lased_pool_service_seconds", how="avg"), "{{pool}}"),
              (value("lased_pool_service_seconds_low", how="min"), "{{pool}}, lower bound"),
              (value("lased_pool_service_seconds_high", how="max"), "{{pool}}, upper bound"), empty=NO_CURVE),
        graph("Capacity", "Requests in flight up to which the pool keeps up, as the policy curve learns it.",
              units.Short, (value("lased_pool_capacity", how="avg"), "{{pool}}"),
              (value("lased_pool_capacity_low", how="min"), "{{pool}}, lower bound"),
              (value("lased_pool_capacity_high", how="max"), "{{pool}}, upper bound"), empty=NO_CURVE),
        graph("Throughput at most", "Requests per second that the pool completes at the most, as the policy curve "
              "learns it.", units.RequestsPerSecond, (value("lased_pool_throughput", how="avg"), "{{pool}}"),
              (value("lased_pool_throughput_low", how="min"), "{{pool}}, lower bound"),
              (value("lased_pool_throughput_high", how="max"), "{{pool}}, upper bound"), empty=NO_CURVE),
        graph("Observations", "Service times learned from, a second. A pool that gets none is not learned about.",
              units.CountsPerSecond, (rate("lased_service_observations_total", "pool"), "{{pool}}"), width=12),
        graph("Service times, mean", "As reported by the pools or inferred.", units.Seconds,
              (mean("lased_service_seconds", "pool"), "{{pool}}"), width=12),
        graph("Reported backlog", "Requests left at a pool, in its last word to this dispatcher; others' are among "
              "them.", units.Short, (value("lased_pool_reported_queue_depth", how="max"), "{{pool}}"),
              empty="no pool reports its load"),
        graph("Sharing", "1 while what is learned is shared through Redis (state_url).", units.Short,
              (value("lased_shared_learning_up", "instance", ALL, "min"), "{{instance}}"), empty=NOT_SHARED),
        graph("Exchanges", "With the others, a second.", units.CountsPerSecond,
              (rate("lased_shared_learning_looks_total", "outcome", ALL), "{{outcome}}"), empty=NOT_SHARED),
    ]  # fmt: skip
    choices = [
        graph("Regret by cause", "Share of the decisions that the oracle would not have made. It falls towards 0 when "
              "learning succeeds.", units.PercentUnit,
              (share(rate("lased_regret_decisions_total", "cause", ALL), decisions, "cause"), "{{cause}}"),
              width=12, empty=NO_TRUTH),
        graph("Excess cost", "Mean over decisions of (cost of the chosen pool - least cost) / least cost, with the "
              "costs of the oracle. Under the policy curve read this instead of the share of decisions.",
              units.PercentUnit, (share(rate("lased_regret_excess_total", where=ALL), decisions), "excess"),
              width=12, empty=NO_TRUTH),
        graph("Decisions by phase", "Forced trials (explore) and choices of what looked best (exploit).",
              units.RequestsPerSecond, (rate("lased_decisions_total", "phase"), "{{phase}}"), width=12),
        graph("Decisions by pool and phase", "Where requests were sent, and why.", units.RequestsPerSecond,
              (rate("lased_decisions_total", "pool, phase"), "{{pool}} {{phase}}"), width=12),
        graph("Turned away", "Share of the tries at a pool that it would not take: 503, 429, no connection, or no "
              "answer in time.", units.PercentUnit,
              (share(rate("lased_pool_rejections_total", "pool"), rate("lased_decisions_total", "pool")),
               "{{pool}}"), width=12, empty="no pool turns requests away"),
        graph("Chance of being drawn", "By policies that draw (exp3_ix, tsallis_inf); 0 while a pool asks to be left "
              "alone. No regret means that all pools turn away alike, not that chances settle.", units.PercentUnit,
              (value("lased_choice_probability", how="avg"), "{{pool}}"), width=12, empty="the policy does not draw"),
    ]  # fmt: skip
    episodes = [
        graph("Episodes", "Episodes that ended, a second, by whether they held forced trials.", units.CountsPerSecond,
              (rate("lased_episodes_total", "explored", ALL), "explored: {{explored}}")),
        graph("Requests in an episode", "Of the episodes that ended.", units.Short,
              (mean("lased_episode_arrivals", where=ALL), "mean"),
              (quantile(0.9, "lased_episode_arrivals", where=ALL), "p90")),
        graph("Age of the open episode", "0 between episodes. An episode ends when the pools are idle.", units.Seconds,
              (value("lased_episode_open_seconds", "instance", ALL, "max"), "{{instance}}")),
    ]  # fmt: skip
    shadow_decisions = rate("lased_shadow_decisions_total", "policy", ALL)
    shadows = [
        graph("Agreement", "Share of the decisions that a shadow policy would have made likewise.", units.PercentUnit,
              (agreement(), "{{policy}}"), width=6, empty=NO_SHADOW),
        graph("Regret, on trial and in force", "Share of the decisions that the oracle would not have made, in the "
              "states that the policy in force brings about.", units.PercentUnit,
              (share(rate("lased_shadow_regret_decisions_total", "policy", ALL), shadow_decisions), "{{policy}}"),
              (share(rate("lased_regret_decisions_total", where=ALL), decisions), "in force"),
              width=6, empty=NO_TRUTH),
        graph("Where they would send", "Requests a second that a shadow policy would have sent to a pool.",
              units.RequestsPerSecond, (rate("lased_shadow_decisions_total", "policy, pool"), "{{policy}}: {{pool}}"),
              width=6, empty=NO_SHADOW),
        graph("Faults on trial", "Faults of the shadow policies; they harm no request.", units.CountsPerSecond,
              (rate("lased_shadow_errors_total", "policy", ALL), "{{policy}}"), width=6, empty=NO_SHADOW),
    ]  # fmt: skip
    return page(
        "lased-learning", "LASED / Learning", "What the policy believes of the pools, what its errors cost, and how "
        "other policies would have decided.",
        [("At a glance", glance), ("What is believed", [band]), ("Estimates", estimates), ("Decisions", choices),
         ("Episodes", episodes), ("Shadow policies", shadows)],
    )  # fmt: skip


def agreement() -> str:
    otherwise = rate("lased_shadow_disagreements_total", "policy", ALL)
    return f"clamp_min(1 - {share(otherwise, rate('lased_shadow_decisions_total', 'policy', ALL))}, 0)"


def load_test() -> model.Dashboard:
    response, service = "lased_request_duration_seconds", "lased_service_seconds"
    held = f"{value('lased_in_flight', '')} + {value('lased_queue_length', '', ALL)}"
    pace = [
        graph("Achieved rate", "Answers a second that the dispatcher gave. Compare it with the rate that was asked of "
              "the load generator: less means that the system is full or requests fail.", units.RequestsPerSecond,
              (rate("lased_requests_total"), "all"), (rate("lased_requests_total", "pool"), "{{pool}}")),
        graph("Routed and answered", "Decisions a second against answers a second. They part when requests pile up, or "
              "are tried again.", units.RequestsPerSecond,
              (rate("lased_decisions_total"), "routed"), (rate("lased_requests_total"), "answered")),
        graph("Failed", "Answers of 5xx a second.", units.RequestsPerSecond,
              (rate("lased_requests_total", "pool", POOL + ',code="5xx"'), "{{pool}}")),
    ]  # fmt: skip
    times = [
        graph("Response against service", "Response times run from a request's head to the end of its answer; service "
              "times are the pools' work alone. What lies between is waiting.", units.Seconds,
              *quantiles(response, word="response"), *quantiles(service, word="service"), width=12),
        graph("Slowdown", "Mean response time over mean service time: 1 without any waiting.", units.Short,
              (f"({mean(response, 'pool')}) / ({mean(service, 'pool')})", "{{pool}}"), width=12),
        graph("Response time by pool, p99", "From a request's head to the end of its answer.", units.Seconds,
              (quantile(0.99, response, "pool"), "{{pool}}"), width=12),
        graph("Service time by pool, p99", "As reported by the pools or inferred.", units.Seconds,
              (quantile(0.99, service, "pool"), "{{pool}}"), width=12),
    ]  # fmt: skip
    load = [
        graph("Busy servers", "Seconds of service a second: how many servers of a pool are busy on average. Near their "
              "number, the pool is full.", units.Short, (rate(f"{service}_sum", "pool"), "{{pool}}")),
        graph("In flight", "Requests sent to a pool and not finished.", units.Short,
              (value("lased_in_flight"), "{{pool}}")),
        graph("Little's law", "Requests held, at the pools and in the queue, as counted at the scrape; and as rate "
              "times mean response time. On a steady load both agree on average.", units.Short,
              (held, "counted"), (rate(f"{response}_sum"), "rate × response time")),
    ]  # fmt: skip
    limits = [lag(), waits(), refused(), failed_tries(), aborts()]
    return page(
        "lased-load-test", "LASED / Load test",
        "What a load test does to the dispatcher: as the load generator sees it, where it is scraped "
        "(attack --metrics), and as the dispatcher does.",
        [("The load generator", generator()), ("Pace", pace), ("Response and service", times), ("Load", load),
         ("Limits", limits)],
    )  # fmt: skip


def generator() -> list[timeseries.Panel]:
    none = "no load generator scraped under this job"
    return [
        graph("Planned and sent", "The rate that was asked for, and the sends. They part only if it is late.",
              units.RequestsPerSecond, (value("loadgen_target_rate", "", ALL), "planned"),
              (rate("loadgen_sent_total", where=ALL), "sent"),
              (rate("loadgen_requests_total", "outcome", ALL), "{{outcome}}"),
              (rate("loadgen_dropped_total", where=ALL), "dropped"), empty=none),
        graph("Lateness", "From the planned instant to the sending. Beyond some milliseconds the generator itself is "
              "overloaded, and the run is not to be trusted.", units.Seconds,
              *quantiles("loadgen_send_lateness_seconds", ALL), empty=none),
        graph("Response and service, as the client saw them", "Response runs from the planned instant, service from "
              "the sending: what a user waits, and what the system took.", units.Seconds,
              *quantiles("loadgen_response_duration_seconds", ALL, "response"),
              *quantiles("loadgen_service_duration_seconds", ALL, "service"), empty=none),
    ]  # fmt: skip


DASHBOARDS = {"overview": overview, "learning": learning, "load-test": load_test}


def rendered() -> dict[Path, str]:
    """What the files must hold."""
    return {
        FOLDER / f"{name}.json": json.dumps(make(), cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False)
        + "\n"
        for name, make in DASHBOARDS.items()
    }


if __name__ == "__main__":
    for file, text in rendered().items():
        file.write_text(text)
