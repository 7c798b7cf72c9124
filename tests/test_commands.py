"""The commands as a person meets them: help, one clear line for each mistake, exit codes, clean ends."""

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

COMMANDS = [
    ["dispatcher"],
    ["dispatcher", "serve"],
    ["dispatcher", "check"],
    ["dispatcher", "policies"],
    ["workers"],
    ["loadgen"],
    ["loadgen", "attack"],
    ["loadgen", "simulate"],
    ["loadgen", "demo"],
    ["loadgen", "reproduce"],
    ["loadgen", "compare"],
    ["loadgen", "theory"],
]


def run(*arguments):
    return subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help(command, run_here):
    done = run_here(*command, "--help")
    assert done.returncode == 0
    assert "Usage: " in done.stdout


@pytest.fixture
def busy_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


POOL = "--pool=a=http://127.0.0.1:9"
ATTACK = ["loadgen", "attack", "--rate", "1", "--duration", "1"]
WORKERS = ["workers", "--listen", "127.0.0.1:0", "--rate", "9"]
THEORY = ["loadgen", "theory", "--lam", "1", "--mu", "1,2"]
CURVES = ["loadgen", "theory", "--lam", "1", "--curve", "infinite:seconds=1"]
COMPARE = ["loadgen", "compare", "--lam", "1", "--mu", "1,2", "--arrivals", "50"]
SIMULATE = ["loadgen", "simulate", "--policy", "lased", "--lam", "1", "--mu", "1,2", "--arrivals", "9"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["dispatcher", "serve"], 2, "pools: there must be at least one"),
        (["dispatcher", "serve", "--config", "nowhere.toml"], 2, "nowhere.toml: No such file or directory"),
        (["dispatcher", "serve", POOL, "--policy", "lasd"], 2, "there is no policy 'lasd' (did you mean 'lased'?)"),
        (["dispatcher", "serve", POOL, "--policy", "sed"], 2, "pool 'a': policy sed needs true_rate"),
        (["dispatcher", "serve", "--pool", "a"], 2, "--pool must be NAME=URL"),
        (["dispatcher", "serve", POOL, "--listen", "x"], 2, "listen: must be HOST:PORT"),
        (["dispatcher", "serve", POOL, "--rows", "/nowhere/rows"], 1, "rows: cannot write /nowhere/rows"),
        (["dispatcher", "check", POOL, "--policy", "os:getcwd"], 2, "policy 'os:getcwd' cannot be made"),
        (["dispatcher", "check", POOL, "--policy", "json:JSONDecoder"], 2, "cannot be made"),
        (["dispatcher", "serve", "--nonsense"], 2, "No such option: --nonsense"),
        (["dispatcher", "srve"], 2, "No such command 'srve'"),
        (["dispatcher", "check", POOL, "--policy", "x:y"], 2, "policy 'x:y' cannot be loaded"),
        (["workers", "--rate", "5"], 2, "Missing option '--listen'"),
        (["workers", "--listen", "127.0.0.1:0", "--rate", "0"], 2, "the rate must be positive, not 0"),
        (["workers", "--listen", "127.0.0.1:0", "--rate", "5", "--service", "gauss"], 2, "unknown service law 'gauss'"),
        (["workers", "--listen", "x", "--rate", "5"], 2, "'x' is not HOST:PORT"),
        ([*ATTACK, "http://x/", "--rate", "1e-9"], 2, "the schedule holds no request"),
        ([*ATTACK, "http://x/", "--rate", "9", "--out", "/proc/nowhere"], 1, "cannot write into /proc/nowhere"),
        ([*ATTACK, "127.0.0.1"], 2, "the URL must begin with http"),
        ([*ATTACK, "http://x/", "--rate", "0"], 2, "the rate must be positive"),
        ([*ATTACK, "http://x/", "--duration", "-1"], 2, "the duration must be positive"),
        ([*ATTACK, "http://x/", "--arrivals", "x"], 2, "unknown arrivals"),
        ([*SIMULATE, "--policy", "x"], 2, "there is no policy 'x'"),
        ([*SIMULATE, "--mu", "a"], 2, "--mu must be numbers"),
        ([*SIMULATE, "--lam", "0"], 2, "lam must be positive"),
        ([*SIMULATE, "--guess", "1"], 2, "guess has 1 values for 2 pools"),
        ([*SIMULATE, "--option", "n0"], 2, "--option must be k=v"),
        ([*SIMULATE, "--option", "n=0"], 2, "has no option 'n'"),
        ([*SIMULATE, "--service", "x"], 2, "unknown service law 'x'"),
        ([*SIMULATE, "--servers", "1.5,1"], 2, "--servers must be whole numbers"),
        ([*SIMULATE, "--engine", "compiled", "--option", "estimator=window:size=99"], 2, "only the mean is compiled"),
        ([*SIMULATE, "--process", "waves"], 2, "unknown arrivals 'waves'"),
        ([*SIMULATE, "--service", "pareto:shape=1"], 2, "shape of a Pareto law must be above 1"),
        ([*SIMULATE, "--option", "exponent=0"], 2, "exponent must be above 0 and at most 1"),
        ([*SIMULATE, "--profile", "3:step:at=1,factor=2"], 2, "--profile must be POOL:PROFILE with a pool from 1 to 2"),
        ([*SIMULATE, "--profile", "1:hop"], 2, "unknown profile 'hop'"),
        ([*SIMULATE, "--warmup", "9"], 2, "more than warmup"),
        ([*THEORY, "--lam", "3"], 2, "no steady state"),
        ([*THEORY, "--guess", "1"], 2, "--guess has 1 values for 2 pools"),
        ([*THEORY, "--curve", "infinite:seconds=1"], 2, "either --mu or a --curve for each pool"),
        (["loadgen", "theory", "--lam", "1"], 2, "either --mu or a --curve for each pool"),
        ([*CURVES, "--servers", "2"], 2, "--servers goes with --mu; a --curve holds its own"),
        ([*CURVES, "--curve", "soft:a=1"], 2, "--curve: curve 'soft:a=1': soft needs seconds"),
        ([*THEORY, "--ties", "second"], 2, "--ties must be one of first, last, fastest, slowest"),
        ([*THEORY, "--side", "999"], 2, "between 3 and 250"),
        ([*THEORY, "--lam", "2.96"], 2, "the load is too high for exact values: with 250 states a pool sed would lose"),
        ([*THEORY, "--servers", "300,1"], 2, "exact values of 2 pools are for at most 248 servers"),
        ([*SIMULATE, "--servers", "1e300,1"], 2, "servers must be from 1 to 100,000"),
        ([*SIMULATE, "--service", "lognormal:cv=1e200"], 2, "cv must be above 0 and at most 1000"),
        ([*SIMULATE, "--process", "mmpp:period=1e-9"], 2, "mmpp needs ratio"),
        ([*SIMULATE, "--option", "alpha=1000"], 2, "alpha from 0 to 10"),
        ([*COMPARE, "--policies", "lased/n0,jsq"], 2, "options are k=v behind slashes"),
        ([*WORKERS, "--servers", "0"], 2, "--servers must be a whole number of at least 1, or inf, not '0'"),
        ([*WORKERS, "--servers", "1.5"], 2, "--servers must be a whole number of at least 1, or inf, not '1.5'"),
        ([*WORKERS, "--discipline", "ps:limit=4"], 2, "ps takes no options"),
        ([*WORKERS, "--discipline", "esept", "--limit", "4"], 2, "--limit goes with --discipline fcfs or ps, not"),
        ([*WORKERS, "--discipline", "esept", "--servers", "inf"], 2, "esept needs a number of servers"),
        ([*WORKERS, "--discipline", "esept"], 2, "needs services that depend on the request"),
        ([*WORKERS, "--service", "logistic:x1=1", "--discipline", "lcp"], 2, "lcp needs horizon"),
        ([*WORKERS, "--service", "logistic:x1=1", "--discipline", "lcp:horizon=9,window=inf"], 2, "a whole number"),
        ([*WORKERS, "--service", "logistic:x1=1", "--discipline", "esept:age=-1"], 2, "age must be 0 or more"),
        ([*WORKERS, "--service", "logistic:x1=1", "--profile", "step:at=1,factor=2"], 2, "not depend on the request"),
        ([*THEORY, "maximum"], 2, "WHAT must be one of all, chain, exponent, optimum"),
        (["loadgen", "reproduce", "fig9"], 2, "there is no experiment 'fig9'"),
        (["loadgen", "reproduce", "fig4", "--out", "/proc/x"], 1, "cannot write into /proc/x"),
        (["loadgen", "reproduce", "ties", "--backend", "live"], 2, "ties: this size has no live form"),
        ([*COMPARE, "--policies", "lased"], 2, "--policies must name at least two different ones"),
        ([*COMPARE, "--policies", "lased,lasd"], 2, "there is no policy 'lasd' (did you mean 'lased'?)"),
        ([*COMPARE, "--policies", "sed,jsq", "--guess", "1"], 2, "--guess must have as many values as"),
        ([*SIMULATE, "--trace", "/nowhere/t.csv"], 2, "--trace /nowhere/t.csv: No such file or directory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mistake_gets_one_clear_line(arguments, code, message, run_here):
    done = run_here(*arguments)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stdout == ""


def test_a_busy_port_is_named(busy_port):
    for arguments in (
        ["--listen", f"127.0.0.1:{busy_port}", "--admin", "127.0.0.1:0"],
        ["--admin", f"127.0.0.1:{busy_port}", "--listen", "127.0.0.1:0"],
    ):
        done = run("dispatcher", "serve", POOL, *arguments)
        assert done.returncode == 1
        last = done.stderr.splitlines()[-1]
        key = arguments[0].removeprefix("--")
        assert (
            last == f"error: {key}: 127.0.0.1:{busy_port} is in use by another program; "
            "stop it or choose another address"
        )
    done = run("workers", "--listen", f"127.0.0.1:{busy_port}", "--rate", "5")
    assert (done.returncode, done.stderr) == (
        1,
        f"error: cannot listen on 127.0.0.1:{busy_port}: Address already in use\n",
    )


def test_check_prints_what_would_run(tmp_path, run_here):
    done = run_here("dispatcher", "check", "--config", "deploy/dispatcher.toml")
    assert done.returncode == 0
    assert "policy  lased n0 = 7, c = 3.0, alpha = 1.0" in done.stdout
    assert "pool    large at http://127.0.0.1:9002, 1 server, guess 0.1 a second, true rate 10" in done.stdout


def test_policies_are_listed_with_their_options(run_here):
    done = run_here("dispatcher", "policies")
    names = [line.split()[0] for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert {"lased", "sed", "esed", "greedy", "jsq", "round_robin", "random"} <= set(names)
    assert "n0 = 7" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", ["dispatcher", "workers"])
def test_a_signal_ends_a_service_cleanly(command, number):
    arguments = {
        "dispatcher": ["serve", POOL, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"],
        "workers": ["--listen", "127.0.0.1:0", "--rate", "5"],
    }[command]
    with subprocess.Popen(
        [sys.executable, "-m", command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert "listening on 127.0.0.1:" in process.stdout.readline()
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 0, errors
        assert "Traceback" not in errors


def test_simulate_prints_the_contracts_keys_and_writes_a_trace(tmp_path, run_here):
    trace = tmp_path / "trace.csv"
    more = ["--guess", "1,0.1", "--arrivals", "200", "--reps", "3", "--seed", "1", "--option", "n0=5"]
    done = run_here(*SIMULATE, *more, "--trace", str(trace), "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert {
        "policy",
        "lam",
        "mu",
        "guess",
        "arrivals",
        "reps",
        "seed",
        "regret_mean",
        "regret_se",
        "regret_curve",
        "mean_in_system",
        "mean_response",
        "estimates",
        "episodes",
        "explored_episodes",
    } <= set(result)
    assert len(result["regret_curve"]) == 10
    assert result["regret_curve"][-1] == result["regret_mean"]
    lines = trace.read_text().splitlines()
    assert lines[0] == "n,time,q1,q2,server,phase,regret,episode,rate1,rate2"
    assert len(lines) == 201


def test_simulate_without_json_is_for_reading(run_here):
    done = run_here(*SIMULATE)
    assert done.returncode == 0
    assert "regret_mean" in done.stdout
    assert done.stdout.count("\n") < 30


def test_output_into_a_closed_pipe_is_no_traceback():
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "dispatcher", "policies"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(write)
    assert "Traceback" not in done.stderr


def test_theory_prints_what_is_known(run_here):
    done = run_here("loadgen", "theory", "--lam", "3.6", "--mu", "1,5", "--json")
    found = json.loads(done.stdout)
    assert abs(found["optimum"]["mean_in_system"] - 1.887148) < 1e-5
    rules = {row["rule"]: row for row in found["rules"]}
    assert abs(rules["sed"]["mean_in_system"] - 1.964442) < 1e-6
    assert abs(rules["sed e=0.7"]["above_optimum"] - 0.0052) < 1e-4
    assert "optimum" in run_here("loadgen", "theory", "--lam", "3.6", "--mu", "1,5").stdout
