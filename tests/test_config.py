"""The configuration: an error names the key and the fault in one line; a valid one becomes typed objects."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

from dispatcher.config import load
from dispatcher.errors import ConfigError
from dispatcher.platform.sockets import Address
from dispatcher.reload import prepare
from dispatcher.settings import Config, LiveSettings, PoolConfig, Settings, Timeouts

GOOD = """
listen = "127.0.0.1:8080"
admin  = "127.0.0.1:9090"
[policy]
name = "lased"
options = { n0 = 7, c = 3.0, alpha = 1.0 }
[[pools]]
name = "small"
url = "http://127.0.0.1:9001"
servers = 1
guess = 5.0
true_rate = 5.0
[[pools]]
name = "large"
url = "http://127.0.0.1:9002"
guess = 0.1
true_rate = 10.0
"""
POOL = '[[pools]]\nname = "a"\nurl = "http://127.0.0.1:9001"\n'


def write(tmp_path, text):
    path = tmp_path / "dispatcher.toml"
    path.write_text(text)
    return path


def test_the_contracts_example(tmp_path):
    config = load(write(tmp_path, GOOD), {}, {})
    assert [pool.spec.guess for pool in config.pools] == [5.0, 0.1]
    assert config.pools[1].address == Address("127.0.0.1", 9002)
    assert config.policy.options == {"n0": 7, "c": 3.0, "alpha": 1.0}
    assert config.limits.head_bytes == 16384
    assert config.timeouts.answer == 60.0


def test_the_shipped_example_is_good():
    config = load(Path(__file__).parent.parent / "deploy" / "dispatcher.toml", {}, {})
    assert [pool.name for pool in config.pools] == ["small", "large"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (POOL + "guess = -3", "pools.0.guess: input should be greater than 0, not -3"),
        (POOL + "gues = 3.0", "pools.0.gues: unknown key (did you mean 'guess'?)"),
        ("lisen = 'x'\n" + POOL, "lisen: unknown key (did you mean 'listen'?)"),
        ("[timeouts]\nanswr = 3\n" + POOL, "timeouts.answr: unknown key (did you mean 'answer'?)"),
        ("[limits]\nheaders = -1\n" + POOL, "limits.headers: input should be greater than or equal to 0, not -1"),
        ("listen = 'localhost'\n" + POOL, "listen: must be HOST:PORT, as in 127.0.0.1:8080, or unix:/PATH"),
        ("listen = 'localhost:99999'\n" + POOL, "listen: must be HOST:PORT"),
        (POOL + POOL, "pools: two pools are named 'a'; names must differ"),
        ('[[pools]]\nname = "a"', "pools.0.url: is missing"),
        ('[[pools]]\nname = "a"\nurl = "gopher://x:1"', "pools.0.url: must be http://HOST:PORT or https://HOST:PORT"),
        ('[[pools]]\nname = "a"\nurl = "http://x:1/y"', "pools.0.url: must be http://HOST:PORT or https://HOST:PORT"),
        ('[[pools]]\nname = "a"\nurl = "http://x:99999"', "pools.0.url: "),
        ('[[pools]]\nname = "a b"\nurl = "http://x:1"', "pools.0.name: string should match pattern"),
        (POOL + 'servers = "2"', "pools.0.servers: input should be a valid integer, not '2'"),
        (POOL + "servers = 0", "pools.0.servers: input should be greater than or equal to 1, not 0"),
        (POOL + "guess = nan", "pools.0.guess: "),
        ("", "pools: there must be at least one; give [[pools]] or --pool NAME=URL"),
        ("admin = '127.0.0.1:8080'\n" + POOL, "listen and admin are both 127.0.0.1:8080"),
        ("shadow = ['jsq', 'jsq']\n" + POOL, "shadow: duplicate policy 'jsq'"),
        ("x = ", "not TOML"),
        ("policy = 3\n" + POOL, "policy: input should be"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, message):
    with pytest.raises(ConfigError) as refused:
        load(write(tmp_path, text), {}, {})
    assert message in str(refused.value)
    assert "dispatcher.toml" in str(refused.value)
    assert "\n" not in str(refused.value)


def models(model):
    """A model and those of its sections."""
    yield model
    for field in model.model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from models(field.annotation)


KEYS = [
    pytest.param(field, id=f"{model.__name__}.{name}")
    for model in (*models(Config), PoolConfig)
    for name, field in model.model_fields.items()
]


@pytest.mark.parametrize("field", KEYS)
def test_every_key_has_a_description(field):
    assert field.description
    assert field.description.endswith(".")


def test_replaced_settings_hold_for_all_that_share_them():
    live = LiveSettings()
    assert live.timeouts == Settings().timeouts
    live.replace(Settings(timeouts=Timeouts(idle=1.0), trusted_proxies=["10.0.0.0/8"]))
    assert (live.timeouts.idle, live.timeouts.head) == (1.0, 10.0)
    assert [str(network) for network in live.trusted] == ["10.0.0.0/8"]


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.toml: No such file"):
        load(tmp_path / "nowhere.toml", {}, {})


def test_the_environment_overrides_the_file_and_flags_override_both(tmp_path):
    path = write(tmp_path, GOOD)
    environment = {
        "LASED_LISTEN": "127.0.0.1:1",
        "LASED_TIMEOUTS_ANSWER": "2.5",
        "LASED_POLICY_NAME": "jsq",
        "LASED_SERVICE_PORT_HTTP": "tcp://10.0.0.1:80",
    }
    config = load(path, environment, {"listen": "127.0.0.1:2"})
    assert (config.listen, config.timeouts.answer, config.policy.name) == ("127.0.0.1:2", 2.5, "jsq")


@pytest.mark.parametrize("name", ["LASED_TIMEOUTS_ANSWR", "LASED_TIMEOUT_ANSWER", "LASED_POLICY", "LASED_TIMEOUTS"])
def test_a_variable_that_is_nearly_a_key_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match=f"{name}: unknown variable .did you mean LASED_"):
        load(write(tmp_path, GOOD), {name: "5"}, {})


def test_the_options_of_the_files_policy_do_not_go_to_another(tmp_path):
    assert load(write(tmp_path, GOOD), {}, {"policy.name": "greedy"}).policy.options == {}
    assert load(write(tmp_path, GOOD), {"LASED_POLICY_NAME": "jsq"}, {}).policy.options == {}
    assert load(write(tmp_path, GOOD), {}, {"policy.name": "lased"}).policy.options == {"n0": 7, "c": 3.0, "alpha": 1.0}


def test_a_flag_is_blamed_for_itself(tmp_path):
    with pytest.raises(ConfigError, match="the command line: listen: must be"):
        load(write(tmp_path, GOOD), {}, {"listen": "x"})


def test_a_bad_value_in_the_environment_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"^LASED_TIMEOUTS_ANSWER: timeouts\.answer: input should be a valid number"):
        load(write(tmp_path, GOOD), {"LASED_TIMEOUTS_ANSWER": "soon"}, {})


@pytest.mark.parametrize("key", ["admin_token", "state_url"])
@pytest.mark.parametrize("value", [["redis://:hush@h"], {"a": "hush"}, 5])
def test_a_secret_that_is_none_is_not_shown(key, value):
    with pytest.raises(ConfigError) as told:
        load(None, {}, {"pools": [{"name": "a", "url": "http://127.0.0.1:9"}], key: value})
    assert "hush" not in str(told.value)
    assert key in str(told.value)


POOLS = [{"name": "a", "url": "http://127.0.0.1:9"}]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"state_url": "http://x"}, "must begin with redis://"),
        ({"state_url": "redis://x", "state_file": "y"}, "state_file and state_url are mutually exclusive"),
    ],
)
def test_what_is_learned_is_shared_in_redis_and_nowhere_else(keys, message):
    with pytest.raises(ConfigError, match=message):
        load(None, {}, {"pools": POOLS, **keys})


def test_the_url_of_redis_may_be_a_variable():
    config = load(None, {"LASED_STATE_URL": "redis://:1234@h/0"}, {"pools": POOLS})
    assert config.shared_at == "redis://:1234@h/0"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"policy.name": "jsq"}, "policy 'jsq' learns nothing that can be shared"),
        ({"policy.options": {"estimator": "window"}}, "shares the estimator mean only"),
        ({"policy.options": {"memory": 100}}, "cannot share discounted estimates"),
    ],
)
def test_a_policy_that_cannot_share_is_refused_with_state_url(keys, message):
    config = load(None, {}, {"pools": POOLS, "state_url": "redis://x", **keys})
    with pytest.raises(ConfigError, match=message):
        prepare(config)


def test_check_tells_that_learning_is_shared_and_not_the_secret():
    command = [sys.executable, "-m", "dispatcher", "check", "--pool", "a=http://127.0.0.1:9"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "LASED_STATE_URL": "redis://:hush@h/0"}
    )
    assert "state_url  set: what is learned is shared, as of the fleet lased\n" in done.stdout
    assert "reports read = True, forward = False\n" in done.stdout
    assert "hush" not in done.stdout + done.stderr


def test_a_token_of_digits_is_a_token_and_a_wrong_one_is_not_shown(tmp_path):
    flags = {"pools": [{"name": "a", "url": "http://x"}]}
    assert load(None, {"LASED_ADMIN_TOKEN": "1234567890123456"}, flags).token == "1234567890123456"  # noqa: S105
    path = tmp_path / "x.toml"
    path.write_text("admin_token = 9876543210987654\n[[pools]]\nname = 'a'\nurl = 'http://x'\n")
    with pytest.raises(ConfigError, match="admin_token: must be a string") as refused:
        load(path, {}, {})
    assert "9876" not in str(refused.value)
