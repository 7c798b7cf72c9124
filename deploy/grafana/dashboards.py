"""The Grafana dashboards as code. Run as a script, it writes dashboards/*.json beside it; a test compares them.

Overview shows whether the service is healthy. Learning shows what the policy has learned and what its errors cost. Load
test shows how a run of `lased-loadgen` affects the dispatcher. A query without data while all is well falls back to 0.
A panel that needs a true rate or a shadow policy stays empty without it.

It needs grafana-foundation-sdk==0.0.21, a development dependency. A plain install takes another, older line.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

with warnings.catch_warnings():  # the SDK recommends its model v2, which older versions of Grafana cannot read
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
CONFIGURED = f"and on (job, instance, pool) lased_in_flight{{{POOL}}}"  # a removed pool may keep its lased_pool_up
UP = f"lased_pool_up{{{POOL}}} {CONFIGURED}"
QUANTILES = (0.5, 0.9, 0.99)
NO_SHADOW = "no shadow policy"
NO_TRUTH = "no true rates configured"
NO_CURVE = "the policy does not learn capacities"
NOT_SHARED = "learning is not shared: no state_url"

Query = tuple[str, str]  # PromQL and legend
Panel = Builder[model.Panel]
Row = tuple[str, Sequence[Panel]]  # title and panels


# -- queries


def rate(metric: str, by: str = "", where: str = POOL, function: str = "rate") -> str:
    """Return the summed rate of a counter.

    function: `increase` counts the events in the shown range instead.
    """
    span = "$__rate_interval" if function == "rate" else "$__range"
    return f"sum{f' by ({by})' if by else ''} ({function}({metric}{{{where}}}[{span}]))"


def quantile(q: float, metric: str, by: str = "", where: str = POOL) -> str:
    return f"histogram_quantile({q}, {rate(f'{metric}_bucket', f'{by}, le' if by else 'le', where)})"


def quantiles(metric: str, where: str = POOL, word: str = "") -> list[Query]:
    return [(quantile(q, metric, where=where), f"{word} p{q * 100:g}".strip()) for q in QUANTILES]


def mean(metric: str, by: str = "", where: str = POOL) -> str:
    return f"{rate(f'{metric}_sum', by, where)} / {rate(f'{metric}_count', by, where)}"


def or_zero(query: str, **labels: str) -> str:
    """Return a query that is 0 if the given one has no data. The labels give the legend its text."""
    zero = "vector(0)"
    for label, word in labels.items():
        zero = f'label_replace({zero}, "{label}", "{word}", "", "")'
    return f"{query} or on () {zero}"


def value(metric: str, by: str = "pool", where: str = POOL, how: str = "sum") -> str:
    return f"{how}{f' by ({by})' if by else ''} ({metric}{{{where}}})"


def share(part: str, of: str, extra_label: str = "") -> str:
    """Return one rate divided by another.

    extra_label: a label that only the first rate has.
    """
    return f"{part} / {f'ignoring ({extra_label}) group_left () ' if extra_label else ''}{of}"


# -- panels


def _fill(panel: Any, title: str, text: str, unit: str, queries: Sequence[Query], instant: bool = False) -> Any:
    """Set title, description, unit and queries of a panel."""
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
    done: timeseries.Panel = _fill(panel, title, text, unit, queries)
    return done


def number(
    title: str,
    text: str,
    unit: str,
    *queries: Query,
    width: int = 3,
    empty: str = "",
    names: bool = False,
    limits: tuple[float, ...] = (),
    best: str = "low",
    range_only: bool = False,
) -> stat.Panel:
    """Return a panel with one or a few numbers.

    names: show the legend instead of the value.
    limits: the values at which yellow and red begin.
    best: whether `low` or `high` values are green.
    range_only: show one value for the whole range, without a line behind it.
    """
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
    done: stat.Panel = _fill(panel, title, text, unit, queries, instant=names or range_only)
    return done


def states(title: str, text: str, query: Query, words: tuple[str, str], width: int = 8) -> statetimeline.Panel:
    """Return a panel with a coloured band for each series. words: the texts for 0 and for 1."""
    panel = statetimeline.Panel().height(8).span(width).show_value(common.VisibilityMode.NEVER).line_width(0)
    results = {
        str(i): model.ValueMappingResult(text=word, color=colour, index=i)
        for i, (word, colour) in enumerate(zip(words, ("red", "green"), strict=True))
    }
    panel.mappings([model.ValueMap(options=results)])
    done: statetimeline.Panel = _fill(panel, title, text, units.Short, [query])
    return done


# -- dashboards


def variable(name: str, label: str, query: str, text: str) -> dashboard.QueryVariable:
    result = dashboard.QueryVariable(name).label(label).description(text).query(query).datasource(DATASOURCE)
    result.refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(model.VariableSort.ALPHABETICAL_ASC)
    everything = model.VariableOption(selected=True, text="All", value="$__all")
    return result.multi(True).include_all(True).all_value(".+").current(everything)


def annotation(name: str, colour: str, query: str, title: str) -> dashboard.AnnotationQuery:
    target = prometheus.Dataquery().datasource(DATASOURCE).expr(query).range().ref_id("Anno")
    result = dashboard.AnnotationQuery().name(name).datasource(DATASOURCE).enable(True).hide(False).icon_color(colour)
    return result.expr(query).target(target).title_format(title).tag_keys("instance")


def page(uid: str, title: str, text: str, rows: Sequence[Row]) -> model.Dashboard:
    builder = dashboard.Dashboard(title).uid(uid).description(text).tags(TAGS).readonly()
    builder.time("now-1h", "now").refresh("30s").tooltip(model.DashboardCursorSync.CROSSHAIR).timezone("browser")
    builder.with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    builder.with_variable(variable("job", "Job", "label_values(lased_build_info, job)", "Scrape job."))
    builder.with_variable(
        variable("instance", "Instance", 'label_values(lased_build_info{job=~"$job"}, instance)', "Dispatcher.")
    )
    builder.with_variable(
        variable("pool", "Pool", f"label_values(lased_in_flight{{{ALL}}}, pool)", "Configured pools.")
    )
    builder.link(
        dashboard.DashboardLink("LASED")
        .type(model.DashboardLinkType.DASHBOARDS)
        .tags(TAGS[:1])
        .icon("external link")
        .as_dropdown(False)
        .include_vars(True)
        .keep_time(True)
        .target_blank(False)
        .tooltip("The other dashboards")
    )
    builder.annotation(annotation("Pool down", "red", f"({UP}) == bool 0", "{{pool}} is down, ejected or drained"))
    builder.annotation(
        annotation("Reload refused", "orange", f"lased_config_last_reload_success{{{ALL}}} == bool 0", "reload refused")
    )
    for name, panels in rows:
        builder.with_row(dashboard.Row(name))
        for panel in panels:
            builder.with_panel(panel)
    built = builder.build()
    for i, placed in enumerate(built.panels or (), 1):
        placed.id_val = i  # so that links to a panel stay valid
    for link in built.links or ():
        link.placement = None  # type: ignore[assignment]  # shown in the page, not in the menu
    return built


def policy() -> stat.Panel:
    return number(
        "Policy",
        "The active routing policy.",
        units.Short,
        (value("lased_policy_info", "policy", ALL, "max"), "{{policy}}"),
        names=True,
    )


def lag() -> timeseries.Panel:
    return graph(
        "Event loop lag",
        "Delay of a timer of the event loop, measured four times a second. It grows if the "
        "dispatcher is short of CPU or something blocks it.",
        units.Seconds,
        *quantiles("lased_event_loop_lag_seconds", ALL),
    )


def rejected() -> timeseries.Panel:
    return graph(
        "Rejected requests",
        "Requests refused without being routed, by reason, such as a full queue, too many "
        "connections or a malformed request. No other graph of requests includes them.",
        units.RequestsPerSecond,
        (or_zero(rate("lased_rejected_total", "reason", ALL), reason="none"), "{{reason}}"),
    )


def failed_attempts() -> timeseries.Panel:
    return graph(
        "Failed attempts",
        "Attempts that failed at the pool, by pool and reason. A client sees only those that were not retried.",
        units.CountsPerSecond,
        (
            or_zero(rate("lased_upstream_errors_total", "pool, reason"), pool="all pools", reason="none"),
            "{{pool}} {{reason}}",
        ),
    )


def aborts() -> timeseries.Panel:
    return graph(
        "Client aborts",
        "Clients that left before their response was complete.",
        units.CountsPerSecond,
        (or_zero(rate("lased_client_aborts_total", where=ALL)), "aborts"),
    )


def waits() -> timeseries.Panel:
    return graph(
        "Queue wait",
        "Waiting time of the requests that had to wait for a pool; 0 if none had to wait.",
        units.Seconds,
        *((or_zero(f"({query} >= 0)"), legend) for query, legend in quantiles("lased_queue_wait_seconds", ALL)),
    )


def overview() -> model.Dashboard:
    return page(
        "lased-overview",
        "LASED / Overview",
        "Rate, errors and duration of all requests, and the health of the pools.",
        [overview_summary(), traffic(), load(), failures(), process()],
    )


def overview_summary() -> Row:
    requests, errors = rate("lased_requests_total"), rate("lased_requests_total", where=POOL + ',code="5xx"')
    return "Summary", [
        number("Requests", "Responses per second.", units.RequestsPerSecond, (requests, "requests")),
        number(
            "Errors",
            "Share of the routed requests that got a 5xx response.",
            units.PercentUnit,
            (share(errors, requests), "errors"),
            limits=(0.01, 0.05),
        ),
        number(
            "Duration, p99",
            "Time from the request headers to the end of the response.",
            units.Seconds,
            (quantile(0.99, "lased_request_duration_seconds"), "p99"),
        ),
        number("In flight", "Requests at the pools.", units.Short, (value("lased_in_flight", ""), "in flight")),
        number(
            "In the queue",
            "Requests that wait for a pool.",
            units.Short,
            (value("lased_queue_length", "", ALL), "waiting"),
            limits=(1, 100),
        ),
        number(
            "Pools down",
            "Configured pools that are ejected, down by their health checks, or drained.",
            units.Short,
            (or_zero(f"sum (({UP}) == bool 0)"), "down"),
            limits=(1,),
        ),
        number(
            "Reload",
            "Whether the last reload succeeded. If not, the configuration before it is still active.",
            units.BoolYesNo,
            (value("lased_config_last_reload_success", "", ALL, "min"), "succeeded"),
            limits=(1,),
            best="high",
        ),
        policy(),
    ]


def traffic() -> Row:
    text = "Time from the request headers to the end of the response."
    errors = rate("lased_requests_total", "pool", POOL + ',code="5xx"')
    return "Traffic", [
        graph(
            "Rate by pool",
            "Responses per second, by pool.",
            units.RequestsPerSecond,
            (rate("lased_requests_total", "pool"), "{{pool}}"),
        ),
        graph(
            "Rate by status",
            "Responses per second, by status class.",
            units.RequestsPerSecond,
            (rate("lased_requests_total", "code"), "{{code}}"),
        ),
        graph(
            "Errors by pool",
            "Share of a pool's requests that got a 5xx response.",
            units.PercentUnit,
            (share(errors, rate("lased_requests_total", "pool")), "{{pool}}"),
        ),
        graph("Duration", text, units.Seconds, *quantiles("lased_request_duration_seconds")),
        graph(
            "Duration by pool, p99",
            text,
            units.Seconds,
            (quantile(0.99, "lased_request_duration_seconds", "pool"), "{{pool}}"),
        ),
        graph(
            "Mean duration by pool", text, units.Seconds, (mean("lased_request_duration_seconds", "pool"), "{{pool}}")
        ),
    ]


def load() -> Row:
    return "Load", [
        in_flight(),
        graph(
            "Queue length",
            "Requests that wait because every pool has reached its max_in_flight.",
            units.Short,
            (value("lased_queue_length", "instance", ALL), "{{instance}}"),
        ),
        waits(),
    ]


def in_flight() -> timeseries.Panel:
    return graph(
        "In flight", "Requests sent to a pool and not finished.", units.Short, (value("lased_in_flight"), "{{pool}}")
    )


def failures() -> Row:
    return "Failures", [
        states(
            "Pools",
            "Whether each configured pool is healthy and not drained.",
            (f"min by (pool) ({UP})", "{{pool}}"),
            ("down", "up"),
        ),
        failed_attempts(),
        graph(
            "Retries",
            "Repeated attempts of requests, by the reason for the retry.",
            units.CountsPerSecond,
            (or_zero(rate("lased_retries_total", "reason", ALL), reason="none"), "{{reason}}"),
        ),
        rejected(),
        aborts(),
        graph(
            "Internal errors",
            "Errors of the policy, after which the request was still served, and errors of the "
            "dispatcher itself. The log has the details.",
            units.CountsPerSecond,
            (or_zero(rate("lased_policy_errors_total", where=ALL)), "policy"),
            (or_zero(rate("lased_internal_errors_total", where=ALL)), "dispatcher"),
        ),
    ]


def process() -> Row:
    return "Process", [
        lag(),
        states(
            "Reload",
            "Whether the last reload succeeded.",
            (value("lased_config_last_reload_success", "instance", ALL, "min"), "{{instance}}"),
            ("refused", "ok"),
        ),
        number(
            "Version",
            "Version of each dispatcher.",
            units.Short,
            (value("lased_build_info", "instance, version", ALL, "max"), "{{instance}} {{version}}"),
            width=8,
            names=True,
        ).height(8),
    ]


def learning() -> model.Dashboard:
    return page(
        "lased-learning",
        "LASED / Learning",
        "What the policy has learned about the pools, what its errors cost, and "
        "what other policies would have decided.",
        [
            learning_summary(),
            ("Service rates", [rate_band()]),
            estimates(),
            capacities(),
            shared_learning(),
            decisions(),
            episodes(),
            shadow_policies(),
        ],
    )


DECISIONS = rate("lased_decisions_total", where=ALL)
ON = "on (job, instance, pool)"
LOW, HIGH = f"lased_service_rate_estimate_low{{{POOL}}}", f"lased_service_rate_estimate_high{{{POOL}}}"
TRUTH = f"lased_service_rate_true{{{POOL}}}"


def learning_summary() -> Row:
    within = f"({LOW} <= bool {ON} {TRUTH}) * {ON} ({HIGH} >= bool {ON} {TRUTH})"
    return "Summary", [
        policy(),
        number(
            "Regret",
            "Decisions in the shown range that the oracle, which knows the true rates, would not have made.",
            units.Short,
            (rate("lased_regret_decisions_total", where=ALL, function="increase"), "regret"),
            empty=NO_TRUTH,
            range_only=True,
        ),
        number(
            "Regret by cause",
            "The same decisions by cause: forced trials, wrong estimates, and queues that are "
            "too long for the theory's bound.",
            units.Short,
            (rate("lased_regret_decisions_total", "cause", ALL, "increase"), "{{cause}}"),
            width=6,
            empty=NO_TRUTH,
            range_only=True,
        ),
        number(
            "Coverage",
            "Share of the pools whose true rate lies in the present 95 % interval.",
            units.PercentUnit,
            (f"avg ({within})", "covered"),
            empty=NO_TRUTH,
        ),
        number(
            "Episodes",
            "Episodes that ended in the shown range.",
            units.Short,
            (rate("lased_episodes_total", where=ALL, function="increase"), "ended"),
            range_only=True,
        ),
        number(
            "Open episode",
            "Age of the oldest open episode; 0 between episodes. It grows without limit if the "
            "pools are never all idle.",
            units.Seconds,
            (value("lased_episode_open_seconds", "", ALL, "max"), "age"),
        ),
        number(
            "Agreement",
            "Share of the decisions on which the shadow policy that differs most agrees with the active policy.",
            units.PercentUnit,
            (f"min ({agreement()})", "agree"),
            empty=NO_SHADOW,
        ),
    ]


def rate_band() -> timeseries.Panel:
    band = graph(
        "Service rate of $pool",
        "Estimated services per second and server with the 95 % interval, and the true rate "
        "if it is configured. With several dispatchers: the mean estimate and the widest interval.",
        units.OpsPerSecond,
        (value("lased_service_rate_estimate_high", how="max"), "upper bound"),
        (value("lased_service_rate_estimate_low", how="min"), "lower bound"),
        (value("lased_service_rate_estimate", how="avg"), "estimate"),
        (value("lased_service_rate_true", how="avg"), "true rate"),
    )
    band.repeat("pool").repeat_direction("h").max_per_row(3).fill_opacity(0).span(24)
    no_line = model.DynamicConfigValue(id_val="custom.lineWidth", value=0)
    band.override_by_name("lower bound", [no_line])
    band.override_by_name(
        "upper bound",
        [
            no_line,
            model.DynamicConfigValue(id_val="custom.fillBelowTo", value="lower bound"),
            model.DynamicConfigValue(id_val="custom.fillOpacity", value=20),
        ],
    )
    dashes = {"fill": "dash", "dash": [8, 6]}
    band.override_by_name("true rate", [model.DynamicConfigValue(id_val="custom.lineStyle", value=dashes)])
    return band


def estimates() -> Row:
    estimate = f"lased_service_rate_estimate{{{POOL}}}"
    return "Estimates", [
        graph(
            "Estimate divided by truth",
            "1 is a perfect estimate.",
            units.PercentUnit,
            (f"avg by (pool) ({estimate} / {ON} {TRUTH})", "{{pool}}"),
            empty=NO_TRUTH,
        ),
        graph(
            "Rate ratio",
            "Estimated rate of a pool divided by that of the first pool in the configuration. Routing "
            "depends on these ratios only.",
            units.Short,
            (value("lased_rate_ratio_estimate", how="avg"), "{{pool}}"),
        ),
        graph(
            "Width of the interval",
            "Difference of the upper and the lower bound, divided by the estimate.",
            units.PercentUnit,
            (f"avg by (pool) (({HIGH} - {ON} {LOW}) / {ON} {estimate})", "{{pool}}"),
        ),
        graph(
            "Observations",
            "Service times per second that the policy learns from. It learns nothing about a pool without them.",
            units.CountsPerSecond,
            (rate("lased_service_observations_total", "pool"), "{{pool}}"),
        ),
        graph(
            "Mean service time",
            "Service times, reported by the pools or inferred.",
            units.Seconds,
            (mean("lased_service_seconds", "pool"), "{{pool}}"),
        ),
        graph(
            "Reported queue depth",
            "Requests at a pool, as its last load report to this dispatcher states. Requests "
            "of other dispatchers are included.",
            units.Short,
            (value("lased_pool_reported_queue_depth", how="max"), "{{pool}}"),
            empty="no pool reports its load",
        ),
    ]


def capacities() -> Row:
    def with_bounds(metric: str) -> list[Query]:
        return [
            (value(metric, how="avg"), "{{pool}}"),
            (value(f"{metric}_low", how="min"), "{{pool}}, lower bound"),
            (value(f"{metric}_high", how="max"), "{{pool}}, upper bound"),
        ]

    return "Capacities, as the policy curve learns them", [
        graph(
            "Service time",
            "Seconds that a request takes while the pool keeps up.",
            units.Seconds,
            *with_bounds("lased_pool_service_seconds"),
            empty=NO_CURVE,
        ),
        graph(
            "Capacity",
            "Requests in flight up to which the pool keeps up.",
            units.Short,
            *with_bounds("lased_pool_capacity"),
            empty=NO_CURVE,
        ),
        graph(
            "Maximum throughput",
            "Highest number of requests per second that the pool completes.",
            units.RequestsPerSecond,
            *with_bounds("lased_pool_throughput"),
            empty=NO_CURVE,
        ),
    ]


def shared_learning() -> Row:
    return "Shared learning", [
        graph(
            "Connection to Redis",
            "1 while what is learned is shared through Redis (state_url).",
            units.Short,
            (value("lased_shared_learning_up", "instance", ALL, "min"), "{{instance}}"),
            width=12,
            empty=NOT_SHARED,
        ),
        graph(
            "Exchanges with Redis",
            "Exchanges per second with the other dispatchers, by outcome.",
            units.CountsPerSecond,
            (rate("lased_shared_learning_looks_total", "outcome", ALL), "{{outcome}}"),
            width=12,
            empty=NOT_SHARED,
        ),
    ]


def decisions() -> Row:
    return "Decisions", [
        graph(
            "Regret by cause",
            "Share of the decisions that the oracle would not have made. It falls towards 0 if learning succeeds.",
            units.PercentUnit,
            (share(rate("lased_regret_decisions_total", "cause", ALL), DECISIONS, "cause"), "{{cause}}"),
            width=12,
            empty=NO_TRUTH,
        ),
        graph(
            "Excess cost",
            "Mean over decisions of (cost of the chosen pool - least cost) / least cost, with the "
            "costs of the oracle. With the policy curve, read this instead of the share of decisions.",
            units.PercentUnit,
            (share(rate("lased_regret_excess_total", where=ALL), DECISIONS), "excess"),
            width=12,
            empty=NO_TRUTH,
        ),
        graph(
            "Decisions by phase",
            "Forced trials (explore), and choices of the pool that looked best (exploit).",
            units.RequestsPerSecond,
            (rate("lased_decisions_total", "phase"), "{{phase}}"),
            width=12,
        ),
        graph(
            "Decisions by pool and phase",
            "Decisions per second, by chosen pool and phase.",
            units.RequestsPerSecond,
            (rate("lased_decisions_total", "pool, phase"), "{{pool}} {{phase}}"),
            width=12,
        ),
        graph(
            "Rejections by the pool",
            "Share of the attempts that the pool rejected: 503, 429, no connection, or no response in time.",
            units.PercentUnit,
            (share(rate("lased_pool_rejections_total", "pool"), rate("lased_decisions_total", "pool")), "{{pool}}"),
            width=12,
            empty="no pool rejects requests",
        ),
        graph(
            "Choice probability",
            "Probability with which a policy that draws (exp3_ix, tsallis_inf) chooses the "
            "pool; 0 while the pool has asked for a pause. It need not become constant: with no regret, all pools "
            "reject the same share.",
            units.PercentUnit,
            (value("lased_choice_probability", how="avg"), "{{pool}}"),
            width=12,
            empty="the policy does not draw",
        ),
    ]


def episodes() -> Row:
    return "Episodes", [
        graph(
            "Episodes",
            "Episodes that ended, per second, by whether they contained forced trials.",
            units.CountsPerSecond,
            (rate("lased_episodes_total", "explored", ALL), "explored: {{explored}}"),
        ),
        graph(
            "Requests per episode",
            "Requests in the episodes that ended.",
            units.Short,
            (mean("lased_episode_arrivals", where=ALL), "mean"),
            (quantile(0.9, "lased_episode_arrivals", where=ALL), "p90"),
        ),
        graph(
            "Age of the open episode",
            "0 between episodes. An episode ends when all pools are idle.",
            units.Seconds,
            (value("lased_episode_open_seconds", "instance", ALL, "max"), "{{instance}}"),
        ),
    ]


def shadow_policies() -> Row:
    shadow_decisions = rate("lased_shadow_decisions_total", "policy", ALL)
    return "Shadow policies", [
        graph(
            "Agreement",
            "Share of the decisions that a shadow policy would have made too.",
            units.PercentUnit,
            (agreement(), "{{policy}}"),
            width=6,
            empty=NO_SHADOW,
        ),
        graph(
            "Regret of shadow and active policy",
            "Share of the decisions that the oracle would not have made, in the states that the active policy causes.",
            units.PercentUnit,
            (share(rate("lased_shadow_regret_decisions_total", "policy", ALL), shadow_decisions), "{{policy}}"),
            (share(rate("lased_regret_decisions_total", where=ALL), DECISIONS), "active"),
            width=6,
            empty=NO_TRUTH,
        ),
        graph(
            "Decisions of the shadow policies",
            "Requests per second that a shadow policy would have sent to a pool.",
            units.RequestsPerSecond,
            (rate("lased_shadow_decisions_total", "policy, pool"), "{{policy}}: {{pool}}"),
            width=6,
            empty=NO_SHADOW,
        ),
        graph(
            "Errors of the shadow policies",
            "Exceptions of the shadow policies; they harm no request.",
            units.CountsPerSecond,
            (rate("lased_shadow_errors_total", "policy", ALL), "{{policy}}"),
            width=6,
            empty=NO_SHADOW,
        ),
    ]


def agreement() -> str:
    disagreements = rate("lased_shadow_disagreements_total", "policy", ALL)
    return f"clamp_min(1 - {share(disagreements, rate('lased_shadow_decisions_total', 'policy', ALL))}, 0)"


def load_test() -> model.Dashboard:
    limits = [lag(), waits(), rejected(), failed_attempts(), aborts()]
    return page(
        "lased-load-test",
        "LASED / Load test",
        "How a load test affects the dispatcher: as the load generator measures it, if it is scraped "
        "(attack --metrics), and as the dispatcher measures it.",
        [load_generator(), throughput(), response_times(), load_during_test(), ("Limits", limits)],
    )


def load_generator() -> Row:
    empty = "no load generator is scraped under this job"
    return "Load generator", [
        graph(
            "Planned and sent",
            "Planned rate and sent requests. They differ only if the generator is late.",
            units.RequestsPerSecond,
            (value("loadgen_target_rate", "", ALL), "planned"),
            (rate("loadgen_sent_total", where=ALL), "sent"),
            (rate("loadgen_requests_total", "outcome", ALL), "{{outcome}}"),
            (rate("loadgen_dropped_total", where=ALL), "dropped"),
            empty=empty,
        ),
        graph(
            "Lateness",
            "Time from the planned instant to the sending. Beyond some milliseconds the generator itself "
            "is overloaded, and the run is not valid.",
            units.Seconds,
            *quantiles("loadgen_send_lateness_seconds", ALL),
            empty=empty,
        ),
        graph(
            "Response and service, as the client measures them",
            "The response time starts at the planned instant "
            "and includes the waiting of a user. The service time starts at the sending.",
            units.Seconds,
            *quantiles("loadgen_response_duration_seconds", ALL, "response"),
            *quantiles("loadgen_service_duration_seconds", ALL, "service"),
            empty=empty,
        ),
    ]


RESPONSE, SERVICE = "lased_request_duration_seconds", "lased_service_seconds"


def throughput() -> Row:
    return "Throughput", [
        graph(
            "Achieved rate",
            "Responses per second of the dispatcher. If this is less than the planned rate of the "
            "load generator, the system is full or requests fail.",
            units.RequestsPerSecond,
            (rate("lased_requests_total"), "all"),
            (rate("lased_requests_total", "pool"), "{{pool}}"),
        ),
        graph(
            "Routed and answered",
            "Decisions and responses per second. They differ if requests accumulate or are retried.",
            units.RequestsPerSecond,
            (rate("lased_decisions_total"), "routed"),
            (rate("lased_requests_total"), "answered"),
        ),
        graph(
            "Errors",
            "5xx responses per second.",
            units.RequestsPerSecond,
            (rate("lased_requests_total", "pool", POOL + ',code="5xx"'), "{{pool}}"),
        ),
    ]


def response_times() -> Row:
    return "Response and service times", [
        graph(
            "Response and service",
            "The response time runs from the request headers to the end of the response. The "
            "service time is the work of the pool alone. The difference is waiting.",
            units.Seconds,
            *quantiles(RESPONSE, word="response"),
            *quantiles(SERVICE, word="service"),
            width=12,
        ),
        graph(
            "Slowdown",
            "Mean response time divided by mean service time; 1 without any waiting.",
            units.Short,
            (f"({mean(RESPONSE, 'pool')}) / ({mean(SERVICE, 'pool')})", "{{pool}}"),
            width=12,
        ),
        graph(
            "Response time by pool, p99",
            "Time from the request headers to the end of the response.",
            units.Seconds,
            (quantile(0.99, RESPONSE, "pool"), "{{pool}}"),
            width=12,
        ),
        graph(
            "Service time by pool, p99",
            "Service times, reported by the pools or inferred.",
            units.Seconds,
            (quantile(0.99, SERVICE, "pool"), "{{pool}}"),
            width=12,
        ),
    ]


def load_during_test() -> Row:
    held = f"{value('lased_in_flight', '')} + {value('lased_queue_length', '', ALL)}"
    return "Load", [
        graph(
            "Busy servers",
            "Seconds of service per second, which is the mean number of busy servers of a pool. A "
            "pool is full if this is near its number of servers.",
            units.Short,
            (rate(f"{SERVICE}_sum", "pool"), "{{pool}}"),
        ),
        in_flight(),
        graph(
            "Little's law",
            "Requests at the pools and in the queue: as counted at the scrape, and as rate times "
            "mean response time. At a steady load both agree on average.",
            units.Short,
            (held, "counted"),
            (rate(f"{RESPONSE}_sum"), "rate × response time"),
        ),
    ]


DASHBOARDS = {"overview": overview, "learning": learning, "load-test": load_test}


def rendered() -> dict[Path, str]:
    """Return the content of each file."""
    return {
        FOLDER / f"{name}.json": json.dumps(make(), cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False)
        + "\n"
        for name, make in DASHBOARDS.items()
    }


if __name__ == "__main__":
    for file, text in rendered().items():
        file.write_text(text)
