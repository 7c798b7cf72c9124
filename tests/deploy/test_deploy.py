"""The files of deploy/: each by the checker that there is for it, and against the service that they start."""

import importlib.util
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from dispatcher import config as dispatcher_config

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
SYSTEMD = DEPLOY / "systemd"
UNITS = ["lased-dispatcher.service", "lased-dispatcher.socket", "lased-dispatcher-admin.socket"]
EXPOSURE = 20  # tenths; what `systemd-analyze security` may find at most
OVERLAYS = ["k8s/base", "k8s/overlays/hpa", "k8s/overlays/fleet"]


def run(*command, **options):
    return subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=120, check=False, **options
    )


def ours(*command):
    """Run a program of the environment in which the tests run."""
    return run(Path(sys.executable).parent / command[0], *command[1:])


def in_process(monkeypatch, *command):
    """Run one of our commands in this process, which is quicker, and return its exit status."""
    (entry,) = metadata.entry_points(group="console_scripts", name=command[0])
    monkeypatch.setattr(sys, "argv", [str(word) for word in command])
    with pytest.raises(SystemExit) as end:
        entry.load()()
    return end.value.code


def needs(program):
    found = shutil.which(program)
    return pytest.mark.skipif(found is None, reason=f"{program} is not on this machine")


# -- the image


def dockerfile():
    return (DEPLOY / "Dockerfile").read_text()


@pytest.mark.skipif(not Path(sys.executable).with_name("hadolint").exists(), reason="no hadolint for this processor")
def test_hadolint_has_nothing_to_say():
    done = ours("hadolint", DEPLOY / "Dockerfile")
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_the_image_is_what_compose_and_kubernetes_take_it_for():
    text = dockerfile()
    assert 'ENTRYPOINT ["lased-dispatcher"]' in text
    assert "USER 65532:65532" in text
    assert "EXPOSE 8080 9090" in text
    assert re.search(r"^HEALTHCHECK .*\\\n +CMD \[.*/healthz", text, re.MULTILINE)
    assert re.search(r"^ARG PYTHON=python:3\.11\.\d+-slim-\w+$", text, re.MULTILINE), (
        "pinned, and a Python that is tested"
    )


def test_all_that_the_build_copies_is_let_through_and_little_else():
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile(), re.MULTILINE)
    assert kept == set(itertools.chain.from_iterable(line.split() for line in copies))
    assert all((ROOT / name).exists() for name in kept)


def locked():
    spec = importlib.util.spec_from_file_location("locked", DEPLOY / "locked.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def needed(name, extras=frozenset()):
    """What an installed package and its own needs require here, by their metadata."""
    found = set()
    for text in metadata.requires(name) or []:
        requirement = Requirement(text)
        wanted = [{"extra": extra} for extra in extras or [""]]
        if requirement.marker is None or any(requirement.marker.evaluate(each) for each in wanted):
            found |= {locked().canonical(requirement.name)} | needed(requirement.name, requirement.extras)
    return found


@pytest.mark.parametrize("extras", [[], ["otel"]])
def test_the_part_of_the_lock_that_is_installed_is_all_that_is_needed(extras):
    part = locked().pick((ROOT / "requirements.lock").read_text(), locked().wanted(extras))
    picked = {locked().canonical(name) for name in re.findall(r"^([\w.-]+)==", part, re.MULTILINE)}
    assert needed("lased-dispatcher", extras) <= picked
    assert not picked & {"pytest", "mypy", "numba", "scipy", "matplotlib", "hatchling"}
    assert all("--hash=sha256:" in entry for entry in re.split(r"^(?=[\w.-]+==)", part, flags=re.MULTILINE) if entry)


def test_what_builds_the_wheel_is_locked_too():
    part = locked().pick((ROOT / "requirements.lock").read_text(), locked().wanted(["--build"]))
    picked = set(re.findall(r"^([\w.-]+)==", part, re.MULTILINE))
    assert {"hatchling"} | needed("hatchling") <= picked


def test_several_entries_of_one_package_are_all_taken_and_a_missing_one_is_an_error():
    lock = "a==1 ; x \\\n    --hash=sha256:1\n    # via b\na==2\n    # via\n    #   b\n    #   c\nb==1\n    # via d\n"
    assert locked().pick(lock, {"b"}) == lock
    with pytest.raises(KeyError, match="absent"):
        locked().pick(lock, {"absent"})


# -- the configurations


@pytest.mark.parametrize("name", ["dispatcher.toml", "compose/dispatcher.toml", "k8s/base/dispatcher.toml"])
def test_a_configuration_is_valid(name, monkeypatch, capsys):
    assert in_process(monkeypatch, "lased-dispatcher", "check", "--config", DEPLOY / name) == 0
    assert capsys.readouterr().out.endswith("ok\n")


# -- Compose


def compose():
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def test_compose_passes_its_schema():
    done = ours("check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_compose_services_are_pinned_watched_and_shown_to_this_machine_only():
    services = compose()["services"]
    assert "version" not in compose()
    for name, service in services.items():
        assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), name
        assert service["healthcheck"], name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        for other, how in service.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"}
            assert "test" in services[other]["healthcheck"]
    assert services["loadgen"]["profiles"] == ["load"]
    assert services["prometheus"]["profiles"] == services["grafana"]["profiles"] == ["monitoring"]


def test_compose_mounts_files_read_only_and_its_volumes_are_declared():
    for service in compose()["services"].values():
        for mount in service.get("volumes", []):
            source, _, how = mount.partition(":")
            if source.startswith("./"):
                assert how.endswith(":ro"), mount
            else:
                assert source in compose()["volumes"], mount


def test_compose_pools_are_those_of_its_configuration():
    pools = tomllib.loads((DEPLOY / "compose/dispatcher.toml").read_text())["pools"]
    for pool in pools:
        host, port = pool["url"].removeprefix("http://").split(":")
        command = compose()["services"][host]["command"]
        assert command[command.index("--listen") + 1] == f"0.0.0.0:{port}"
        assert float(command[command.index("--rate") + 1]) == pool["true_rate"]
        assert port in compose()["services"][host]["healthcheck"]["test"][-1]


def test_prometheus_and_grafana_find_each_other_and_their_files():
    services = compose()["services"]
    mounts = {
        inside: DEPLOY / outside
        for name in ("prometheus", "grafana")
        for outside, inside, *_ in (mount.split(":") for mount in services[name]["volumes"])
    }
    prometheus = yaml.safe_load((mounts["/etc/prometheus"] / "prometheus.yml").read_text())
    targets = [target for job in prometheus["scrape_configs"] for target in job["static_configs"][0]["targets"]]
    admin = tomllib.loads((DEPLOY / "compose/dispatcher.toml").read_text())["admin"]
    assert "dispatcher:" + admin.rpartition(":")[2] in targets
    provisioning = mounts["/etc/grafana/provisioning"]
    (source,) = [yaml.safe_load(path.read_text()) for path in (provisioning / "datasources").iterdir()]
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
    (provider,) = [yaml.safe_load(path.read_text()) for path in (provisioning / "dashboards").iterdir()]
    assert list(mounts[provider["providers"][0]["options"]["path"]].glob("*.json"))


@pytest.mark.parametrize("name", ["pool-small", "pool-large", "loadgen"])
def test_options_in_compose_exist(name, monkeypatch, capsys):
    service = compose()["services"][name]
    subcommand = [word for word in service["command"][:1] if not word.startswith("-")]
    assert in_process(monkeypatch, *service["entrypoint"], *subcommand, "--help") == 0
    text = capsys.readouterr().out
    for option in (word for word in service["command"] if word.startswith("--")):
        assert option in text, option


@pytest.mark.slow
def test_the_health_checks_tell_good_from_bad(free_port):
    """The very programs of the Dockerfile and compose.yaml, with their port changed, against a running dispatcher."""
    image = json.loads(re.search(r"^ +CMD (\[.*\])$", dockerfile(), re.MULTILINE)[1])
    checks = [image, compose()["services"]["dispatcher"]["healthcheck"]["test"][1:]]
    probes = [[sys.executable, "-c", check[2].replace("9090", str(free_port))] for check in checks]
    assert [run(*probe).returncode for probe in probes] == [1, 1], "nobody is there"
    command = [
        sys.executable,
        "-m",
        "dispatcher",
        "serve",
        "--pool",
        "a=http://127.0.0.1:9",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        f"0.0.0.0:{free_port}",
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline().startswith("listening")
            assert [run(*probe).returncode for probe in probes] == [0, 0]
        finally:
            process.terminate()


@pytest.fixture
def free_port():
    with socket.create_server(("127.0.0.1", 0)) as chooser:
        return chooser.getsockname()[1]


# -- systemd


@pytest.fixture
def units(tmp_path):
    """The units, with the one program that is not installed here replaced."""
    for name in UNITS:
        text = (SYSTEMD / name).read_text()
        (tmp_path / name).write_text(text.replace("/opt/lased-dispatcher/bin/lased-dispatcher", "/bin/true"))
    return tmp_path


@needs("systemd-analyze")
def test_systemd_understands_the_units(units):
    done = run("systemd-analyze", "verify", "--man=no", *(f"./{name}" for name in UNITS), cwd=units)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


@needs("systemd-analyze")
def test_the_service_is_confined(units):
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE}", "./lased-dispatcher.service"]
    done = run(*command, cwd=units)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_service_waits_for_its_word_and_is_watched():
    text = (SYSTEMD / "lased-dispatcher.service").read_text()
    for line in ("Type=notify", "WatchdogSec=10", "DynamicUser=yes", "ProtectSystem=strict", "NoNewPrivileges=yes"):
        assert f"\n{line}\n" in text
    names = [re.findall(r"^FileDescriptorName=(.+)$", (SYSTEMD / name).read_text(), re.MULTILINE) for name in UNITS[1:]]
    assert names == [["http"], ["admin"]]


@needs("systemd-socket-activate")
@pytest.mark.slow
def test_sockets_that_systemd_opened_are_served_by_their_names():
    with socket.create_server(("127.0.0.1", 0)) as a, socket.create_server(("127.0.0.1", 0)) as b:
        http, admin = (each.getsockname()[1] for each in (a, b))
    command = [
        "systemd-socket-activate",
        f"--listen=127.0.0.1:{http}",
        f"--listen=127.0.0.1:{admin}",
        "--fdname=http:admin",
        "--setenv=PYTHONPATH",
        sys.executable,
        "-m",
        "dispatcher",
        "serve",
        "--pool",
        "a=http://127.0.0.1:9",
        "--admin",
        "127.0.0.1:1",
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            for _ in range(2):
                assert "Listening on" in process.stderr.readline()
            with urllib.request.urlopen(f"http://127.0.0.1:{admin}/healthz", timeout=30) as answer:
                assert answer.status == 200
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(f"http://127.0.0.1:{http}/", timeout=30)
            assert refused.value.code == 502, "the service's socket: its pool cannot be reached"
            refused.value.close()
        finally:
            process.terminate()
            process.stderr.read()


# -- Kubernetes


def rendered(folder):
    done = run("kubectl", "kustomize", DEPLOY / folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def manifests(folder):
    return {each["kind"]: each for each in yaml.safe_load_all(rendered(folder))}


@needs("kubectl")
@pytest.mark.parametrize("folder", OVERLAYS)
def test_manifests_are_valid(folder, tmp_path):
    every = list(yaml.safe_load_all(rendered(folder)))
    # The operator's own kind: the validator has the schemas of Kubernetes alone. The next test looks at its names.
    known = [each for each in every if each["kind"] != "ServiceMonitor"]
    assert len(known) == len(every) - 1
    path = tmp_path / "all.yaml"
    path.write_text(yaml.safe_dump_all(known))
    done = ours("kubernetes-validate", "--strict", path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARN" not in done.stdout + done.stderr, done.stdout + done.stderr


@needs("kubectl")
def test_names_and_labels_lead_from_one_manifest_to_the_next():
    kinds = manifests("k8s/base")
    pod = kinds["Deployment"]["spec"]["template"]
    container = pod["spec"]["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    config = tomllib.loads(kinds["ConfigMap"]["data"]["dispatcher.toml"])
    assert ports == {"http": 8080, "metrics": 9090}
    assert (config["listen"], config["admin"]) == ("0.0.0.0:8080", "0.0.0.0:9090")
    assert {port["targetPort"] for port in kinds["Service"]["spec"]["ports"]} == ports.keys()
    for selector in (
        kinds["Deployment"]["spec"]["selector"]["matchLabels"],
        kinds["Service"]["spec"]["selector"],
        kinds["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    ):
        assert selector
        assert selector.items() <= pod["metadata"]["labels"].items()
    monitor = kinds["ServiceMonitor"]["spec"]
    assert monitor["selector"]["matchLabels"].items() <= kinds["Service"]["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] in {port["name"] for port in kinds["Service"]["spec"]["ports"]}
    (token,) = [each["valueFrom"]["secretKeyRef"] for each in container["env"] if each["name"] == "LASED_ADMIN_TOKEN"]
    assert monitor["endpoints"][0]["authorization"]["credentials"] == token
    assert pod["spec"]["enableServiceLinks"] is False
    for kind in kinds.values():
        assert {f"app.kubernetes.io/{name}" for name in ("name", "instance", "version", "component")} <= kind[
            "metadata"
        ]["labels"].keys()


@needs("kubectl")
def test_a_pod_is_confined_and_has_time_to_drain():
    kinds = manifests("k8s/base")
    pod = kinds["Deployment"]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    paths = [container[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert paths == ["/healthz", "/healthz", "/readyz"]
    config = tomllib.loads(kinds["ConfigMap"]["data"]["dispatcher.toml"])
    waits = container["lifecycle"]["preStop"]["sleep"]["seconds"] + config["timeouts"]["drain"]
    assert waits + 10 <= pod["terminationGracePeriodSeconds"]
    folder = str(Path(config["state_file"]).parent)
    assert folder in {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}


@needs("kubectl")
def test_the_autoscaler_owns_the_number_of_replicas():
    kinds = manifests("k8s/overlays/hpa")
    assert "replicas" not in kinds["Deployment"]["spec"]
    target = kinds["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", kinds["Deployment"]["metadata"]["name"])
    assert "split the samples" in (DEPLOY / "k8s/overlays/hpa/hpa.yaml").read_text()


@needs("kubectl")
def test_a_fleet_shares_what_it_learns():
    done = run("kubectl", "kustomize", DEPLOY / "k8s/overlays/fleet")
    both = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(done.stdout)}
    ours = both["Deployment", "lased-dispatcher"]["spec"]
    assert ours["replicas"] == 3
    environment = {entry["name"]: entry.get("value") for entry in ours["template"]["spec"]["containers"][0]["env"]}
    service = both["Service", "lased-redis"]
    assert (
        environment["LASED_STATE_URL"]
        == f"redis://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}/0"
    )
    config = dispatcher_config.load(
        DEPLOY / "k8s/base/dispatcher.toml",
        {name: value for name, value in environment.items() if value is not None and name != "LASED_ADMIN_TOKEN"},
        {},
    )
    assert (config.policy.name, config.policy.options, config.state_file) == ("partial_sed", {"replicas": 3}, "")
    redis = both["Deployment", "lased-redis"]["spec"]["template"]
    assert redis["metadata"]["labels"].items() >= service["spec"]["selector"].items()
    assert both["Deployment", "lased-dispatcher"]["spec"]["selector"]["matchLabels"].items() <= (
        ours["template"]["metadata"]["labels"].items()
    )


# -- the README

DOCKER, SYSTEM, CLUSTER = "needs an engine", "needs root and systemd", "needs a cluster"
COMMANDS = {  # each, and who tries it
    "docker build": DOCKER,
    "docker run": DOCKER,
    "docker compose": DOCKER,
    "sudo python3 -m venv": SYSTEM,
    "sudo /opt/lased-dispatcher/bin/python -m pip install --no-deps .": SYSTEM,
    "sudo install": SYSTEM,
    "sudo systemctl": SYSTEM,
    "python3 deploy/locked.py |": "test_the_part_of_the_lock_that_is_installed_is_all_that_is_needed",
    "systemd-analyze security": "test_the_service_is_confined",
    "kubectl create secret": CLUSTER,
    "kubectl kustomize deploy/k8s/base": "test_manifests_are_valid",
    "kubectl apply -k": CLUSTER,
    "kubectl rollout status deployment/lased-dispatcher": CLUSTER,
    "kubectl get pods -l app.kubernetes.io/name=lased-dispatcher": CLUSTER,
}


def readme():
    return (DEPLOY / "README.md").read_text()


def commands():
    blocks = re.findall(r"^```sh\n(.*?)^```", readme(), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_readme_is_known_and_its_files_are_there(command):
    tried = [by for start, by in COMMANDS.items() if command.startswith(start)]
    assert len(tried) == 1, "a new command: say here who tries it"
    assert tried[0] in (DOCKER, SYSTEM, CLUSTER) or tried[0] in globals()
    for path in re.findall(r"(?<![\w/])deploy/[\w./-]+", command):
        assert (ROOT / path).exists(), path
    for profile in re.findall(r"--profile (\w+)", command):
        assert any(profile in service.get("profiles", []) for service in compose()["services"].values())


def test_no_command_is_known_that_the_readme_does_not_have():
    for start in COMMANDS:
        assert any(command.startswith(start) for command in commands()), start


def test_links_of_the_readme_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", readme()):
        assert (DEPLOY / target).exists(), target


def test_the_readme_tells_what_was_not_tried():
    assert "Images were not built or run" in readme()
    assert "never applied to a cluster" in readme()
