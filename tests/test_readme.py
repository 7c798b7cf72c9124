"""What the README shows works: its policy passes the suite, its commands and files exist, its links lead somewhere."""

import re
from pathlib import Path

import pytest

from dispatcher.testing import check_policy

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_first_two_commands():
    assert blocks("sh")[0].split("\n")[:2] == ["make demo", "make test"]


def test_the_policy_of_the_readme_passes_the_suite():
    (code,) = [block for block in blocks("python") if "class " in block]
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    namespace = {}
    exec(compile(code, "README.md", "exec"), namespace)  # noqa: S102 - our own README
    check_policy(namespace["NeverQueue"])


def test_the_configuration_of_the_readme_is_good(tmp_path, run_here):
    for i, text in enumerate(blocks("toml")):
        path = tmp_path / f"{i}.toml"
        path.write_text(text)
        done = run_here("dispatcher", "check", "--config", str(path))
        assert done.returncode == 0, done.stderr


def commands():
    text = "\n".join(blocks("sh")).replace("\\\n", " ")
    return sorted({line.strip() for line in text.splitlines() if line.strip().startswith(".venv/bin/lased-")})


@pytest.mark.parametrize("command", commands())
def test_every_option_of_a_command_exists(command, run_here):
    program, *words = command.removesuffix("&").split()
    module = Path(program).name.removeprefix("lased-")
    subcommand = words[:1] if module != "workers" else []
    done = run_here(module, *subcommand, "--help")
    assert done.returncode == 0
    for option in (word for word in words if word.startswith("--")):
        assert option in done.stdout, f"{command}: no {option}"


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("https://") or (ROOT / target).exists(), target


def test_the_make_targets_named_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"`?make ([a-z][a-z-]*)`?", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
