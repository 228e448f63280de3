"""Settings from a file, the environment and the command line, and their errors."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.command import hmc_command
from tests.pages import settings

from hmc.artifact import InvalidRequestError
from hmc.serving.server.configuration import BUNDLES, KEYS, as_toml, load, shown
from hmc.serving.server.settings import ServerSettings, ServeSettings


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "hmc.toml"
    path.write_text(
        'host = "0.0.0.0"\nport = 1\nqueue_size = 1\nlevels = ["full", "h6"]\nlazy = true\nauto_pending = 3\n'
        'bundles = ["b"]\ndrain_seconds = 5\n'
    )
    return path


def test_who_wins(file: Path) -> None:
    environ = {"HMC_PORT": "2", "HMC_QUEUE_SIZE": "2", "HMC_LAZY": "false", "HMC_AUTO_TARGET_MS": "1.5", "PATH": "/"}
    found = load({"port": 3, "workers": 2}, environ, file)
    settings = found.settings
    assert (settings.host, settings.port, settings.queue_size, settings.lazy) == ("0.0.0.0", 3, 2, False)
    assert (settings.levels, settings.workers, settings.drain_seconds) == (("full", "h6"), 2, 5.0)
    assert (settings.auto_pending, settings.auto_target_ms) == (3, 1.5)
    assert settings.bundles == ("b",)
    named = [found.origins.get(key) for key in ("host", "port", "queue_size", "max_rows")]
    assert named == [str(file), "command line", "HMC_QUEUE_SIZE", None]


def test_nothing_is_the_defaults() -> None:
    assert load({}, {}).settings == ServeSettings()


def test_the_environment_can_name_the_file(file: Path) -> None:
    assert load({}, {"HMC_CONFIG": str(file)}).settings.port == 1


@pytest.mark.parametrize("written", ["full,h6", " full , h6 ,"])
def test_lists_with_commas(written: str) -> None:
    assert load({"levels": written}, {}).settings.levels == ("full", "h6")
    assert load({}, {"HMC_LEVELS": written}).settings.levels == ("full", "h6")


def test_all_levels_again(file: Path) -> None:
    assert load({"levels": "all"}, {}, file).settings.levels is None


def test_an_empty_cache_variable_is_none() -> None:
    assert load({}, {"HMC_CACHE": ""}).settings.cache == "auto"
    assert load({}, {"HMC_CACHE": "none"}).settings.cache == "none"


@pytest.mark.parametrize(
    ("given", "environ", "content", "said"),
    [
        ({}, {}, "prot = 1", "has an unknown key 'prot': did you mean 'port'?"),
        ({}, {}, "queue-size = 1", "unknown key 'queue-size': did you mean 'queue_size'?"),
        ({}, {}, "xyzzy = 1", "unknown key 'xyzzy'; docs/settings.md lists all keys"),
        ({}, {}, "[auto]\npending = 1", "unknown key 'auto'"),
        ({}, {}, "port = ", "is not TOML"),
        ({}, {}, 'port = "x"', "hmc.toml: port: choose a whole number"),
        ({}, {}, 'token = ["secret"]', "hmc.toml: token: choose a text"),
        ({}, {}, "port = 70000", "hmc.toml: port 70000: choose 0 to 65535"),
        ({"port": 70000}, {}, "", "--port 70000: choose 0 to 65535"),
        ({}, {"HMC_MAX_ROWS": "0"}, "", "HMC_MAX_ROWS 0: choose 1 or more"),
        ({}, {"HMC_PROT": "1"}, "", "the environment has HMC_PROT, which is no setting: did you mean HMC_PORT?"),
        ({}, {"HMC_MAX_ROW": "1"}, "", "did you mean HMC_MAX_ROWS?"),
        ({}, {"HMC_PORT": "tcp://10.0.0.1:50051"}, "", "HMC_PORT (set by Kubernetes for a Service? set enableServiceL"),
        ({}, {"HMC_LAZY": "perhaps"}, "", "HMC_LAZY: choose true or false"),
        ({}, {"HMC_TOKEN": ""}, "", "the token must be printable ASCII and not empty"),
        ({"gpu_attention": "x"}, {}, "", "--gpu-attention x: choose 'plain', 'efficient' or 'cudnn'"),
        ({"log_format": "xml"}, {}, "", "--log-format xml: choose 'text' or 'json'"),
    ],
)
def test_errors(tmp_path: Path, given: dict[str, Any], environ: dict[str, str], content: str, said: str) -> None:
    (tmp_path / "hmc.toml").write_text(content)
    with pytest.raises(InvalidRequestError) as caught:
        load(given, environ, tmp_path / "hmc.toml")
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"config: cannot read .*nowhere: No such file"):
        load({}, {}, tmp_path / "nowhere")


def test_variables_of_others_are_left_alone() -> None:
    kubernetes = ("HMC_SERVICE_HOST", "HMC_SERVICE_PORT", "HMC_PORT_50051_TCP_ADDR", "HMC_METRICS_SERVICE_PORT")
    load({}, dict.fromkeys((*kubernetes, "HMC_DATA", "HMC_CUDA_COUNTING", "HMC_SOMETHING_ELSE"), "x"))


def test_what_is_printed_is_a_file_of_the_same_settings(file: Path, tmp_path: Path) -> None:
    found = load({"cache": "/a b\\c"}, {"HMC_TOKEN": "s3cret", "HMC_METRICS_PORT": "9"}, file)
    written = as_toml(found)
    assert "s3cret" not in written
    assert "s3cret" not in repr(found.settings)
    assert "# token (set, not shown)  # HMC_TOKEN" in written
    assert f'host = "0.0.0.0"  # {file}' in written
    assert shown(found, defaults=False)["token"] == "(set, not shown)"
    assert "max_rows" not in shown(found, defaults=False)
    again = tmp_path / "again.toml"
    again.write_text(written)
    assert load({}, {"HMC_TOKEN": "s3cret"}, again).settings == found.settings
    assert tomllib.loads(written)["metrics_port"] == 9


def test_every_setting_has_a_meaning_and_an_option_with_its_default() -> None:
    options = {option.name: option for option in hmc_command().commands["serve"].params}
    for key, field in ServerSettings.model_fields.items():
        assert field.description, key
        assert options[key].default is None, f"{key}: an option that is not given must leave the file's value"
        if not isinstance(field.default, bool | None):
            assert options[key].show_default == str(field.default), key
    others = {"bundles", "config", "print_config", "json_output", "ray", "replicas", "help", "quiet", "verbose"}
    assert set(options) - others == set(ServerSettings.model_fields) == set(KEYS) - {BUNDLES}


def test_the_page_of_settings_is_up_to_date(repository: Path) -> None:
    written = (repository / "docs" / "settings.md").read_text(encoding="utf-8")
    assert written == settings(), "run `make docs`"
