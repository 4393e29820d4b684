"""Every setting from every source, and which source wins."""

from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from pilotlight.wire.request_log.settings import LogSettings
from pilotlight_predictor.config import Settings, parse, value_types
from pilotlight_predictor.config.settings_table import ROWS, SettingRow

MODEL = ["--model-path", "m.onnx"]
SAMPLES: dict[value_types.ValueKind, tuple[str, Any]] = {
    value_types.ADAPTERS: ("sql=/adapters/sql", {"sql": "/adapters/sql"}),
    value_types.BYTES: ("3MiB", 3 << 20),
    value_types.DEVICE: ("cuda:1", "cuda:1"),
    value_types.MEGABYTES: ("2.5", 2.5),
    value_types.MEMORY: ("25 %", "25%"),
    value_types.MILLISECONDS: ("2.5", 2.5),
    value_types.NETWORKS: ("10.0.0.0/8", ("10.0.0.0/8",)),
    value_types.PATTERN: ("^my-", "^my-"),
    value_types.RESTRICTED: ("trace,logging:a=b", (value_types.RestrictedGroups(("trace", "logging"), "a", "b"),)),
    value_types.TRACE: ("rate=7", (("rate", "7"),)),
    value_types.PARAMETERS: ("task=fill-mask", {"task": "fill-mask"}),
    value_types.PICKLES: ("w.pkl=" + "aB" * 32, {"w.pkl": "ab" * 32}),
    value_types.LOG: ('{"url":"http://sink/"}', LogSettings("http://sink/")),
    value_types.PINS: ('{"s3://b/m": {"size": 1}}', {"s3://b/m": {"size": 1}}),
    value_types.PORT: ("9123", 9123),
    value_types.PORT_OR_OFF: ("9123", 9123),
    value_types.SECONDS: ("7.5", 7.5),
    value_types.TEXT: ("some text", "some text"),
    value_types.TEXTS: ("one", ("one",)),
    value_types.LABELS: ("v1.2.0=3", {"v1.2.0": 3}),
    value_types.WEIGHTS: ("3=100", {"3": 100.0}),
}


def sample(row: SettingRow) -> tuple[str, Any]:
    if row.key == "model.load_models":
        return "iris", ("iris",)
    if row.key == "server.dialect":
        return "serving", "serving"
    if row.kind is value_types.BOOL:
        return ("false", False) if row.default else ("true", True)
    if row.kind in SAMPLES:
        return SAMPLES[row.kind]
    if "|" in row.kind.metavar:
        word = row.kind.metavar.split("|")[-1]
        return word, word
    return "7", 7


def get(settings: Settings, key: str) -> Any:
    return reduce(getattr, key.split("."), settings)


def mode(row: SettingRow) -> list[str]:
    """What a row's value needs beside it to be valid."""
    needed = {"model.load_models": "--model-control-mode=explicit", "model.park_after_s": "--park-memory=1GiB"}
    return [needed[row.key]] if row.key in needed else []


def model(row: SettingRow) -> list[str]:
    return [] if row.key == "model.path" else MODEL


NAMED = [(row, flag) for row in ROWS for flag in row.flags]
VARIABLES = [(row, name) for row in ROWS for name in row.variables]
PATHS = [(row, path) for row in ROWS for path in row.paths]


@pytest.mark.parametrize(("row", "flag"), NAMED, ids=[flag for _, flag in NAMED])
def test_each_flag_sets_its_setting_in_every_spelling(row: SettingRow, flag: str) -> None:
    text, value = sample(row)
    assert value != row.default
    under = "--" + flag[2:].replace("-", "_")
    for words in ([flag, text], [f"{flag}={text}"], [under, text], [f"{under}={text}"]):
        assert get(parse([*model(row), *mode(row), *words], {}), row.key) == value


@pytest.mark.parametrize(("row", "name"), VARIABLES, ids=[name for _, name in VARIABLES])
def test_each_variable_sets_its_setting(row: SettingRow, name: str) -> None:
    text, value = sample(row)
    assert get(parse([*model(row), *mode(row)], {name: text}), row.key) == value


@pytest.mark.parametrize(("row", "path"), PATHS, ids=[path for _, path in PATHS])
def test_each_key_of_the_file_sets_its_setting(row: SettingRow, path: str, tmp_path: Path) -> None:
    text, value = sample(row)
    *sections, name = path.split(".")
    lines = [f"{'  ' * depth}{section}:" for depth, section in enumerate(sections)]
    shown = (
        f"[{text}]" if row.kind.many == "list" else f"{{{text.replace('=', ': ')}}}" if row.kind.many == "map" else text
    )
    shown = f"'{text}'" if row.kind in (value_types.PINS, value_types.LOG) else shown  # JSON as text
    shown = f"['{text}']" if row.kind is value_types.RESTRICTED else shown
    file = tmp_path / "inference.yaml"
    file.write_text("\n".join([*lines, f"{'  ' * len(sections)}{name}: {shown}"]))
    assert get(parse([*model(row), *mode(row), "--config", str(file)], {}), row.key) == value


def test_no_two_settings_share_a_flag_a_variable_or_a_key() -> None:
    for names in (
        [n for r in ROWS for n in r.flags],
        [n for r in ROWS for n in r.variables],
        [n for r in ROWS for n in r.paths],
    ):
        assert len(names) == len(set(names))


def test_flag_beats_variable_beats_file_beats_compat_beats_default(tmp_path: Path) -> None:
    file = tmp_path / "inference.yaml"
    file.write_text("server: {http_port: 3000, grpc_port: 3001, metrics_port: 3002}\n")
    argv = [*MODEL, "--compat=triton", "--config", str(file), "--http-port=1000"]
    server = parse(argv, {"INFERENCE_HTTP_PORT": "2000", "INFERENCE_GRPC_PORT": "2001"}).server
    assert (server.http_port, server.grpc_port, server.metrics_port) == (1000, 2001, 3002)
    assert parse([*MODEL, "--compat=triton"], {}).server.http_port == 8000
    assert parse(MODEL, {}).server.http_port == 8080


def test_the_file_may_be_named_by_a_variable_and_a_flag_wins_over_it(tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text("apiVersion: pilotlight.dev/v1alpha1\nmodel: {name: one}\n")
    two.write_text("model: {name: two}\n")
    assert parse(MODEL, {"INFERENCE_CONFIG": str(one)}).model.name == "one"
    assert parse([*MODEL, f"--config={two}"], {"INFERENCE_CONFIG": str(one)}).model.name == "two"


def test_repeated_flags_gather_and_a_variable_separates_by_commas() -> None:
    assert parse(["--model-repository=a", "--model-repository", "s3://b/c"], {}).model.repositories == ("a", "s3://b/c")
    assert parse([], {"INFERENCE_MODEL_REPOSITORY": "a, b"}).model.repositories == ("a", "b")


def test_a_switch_stands_alone_takes_a_word_and_can_be_negated() -> None:
    def access_log(*words: str) -> bool:
        return parse([*MODEL, *words], {}).observability.access_log

    assert access_log("--access-log")
    assert access_log("--access-log", "--http-port=0")
    assert access_log("--access-log", "true")
    assert not access_log("--access-log", "false")
    assert not access_log("--access-log", "--no-access-log")


def test_a_port_may_be_off_or_left_to_the_system() -> None:
    server = parse([*MODEL, "--http-port=0", "--grpc-port=none", "--metrics-port", "-1"], {}).server
    assert (server.http_port, server.grpc_port, server.metrics_port) == (0, -1, -1)


def test_loopback_is_admin_unless_a_proxy_stands_before_the_server() -> None:
    assert parse(MODEL, {}).server.admin_loopback
    assert not parse(MODEL, {"K_SERVICE": "iris"}).server.admin_loopback
    assert not parse(MODEL, {"PILOTLIGHT_SERVICE": "iris"}).server.admin_loopback
    assert parse([*MODEL, "--admin-loopback"], {"K_SERVICE": "iris"}).server.admin_loopback


def test_variables_of_a_kubernetes_service_named_inference_do_no_harm() -> None:
    links = {
        "INFERENCE_PORT": "tcp://10.0.0.1:80",
        "INFERENCE_SERVICE_HOST": "10.0.0.1",
        "INFERENCE_SERVICE_PORT_HTTP": "80",
        "INFERENCE_PORT_80_TCP_ADDR": "10.0.0.1",
    }
    settings = parse(MODEL, links)
    assert settings.server.http_port == 8080
    assert settings.warnings == ("INFERENCE_PORT = tcp://10.0.0.1:80 describes a Kubernetes Service and is ignored",)


def test_an_unknown_variable_warns_with_the_nearest_name() -> None:
    (warning,) = parse(MODEL, {"INFERENCE_MODEL_NAM": "x"}).warnings
    assert warning == "INFERENCE_MODEL_NAM is not a setting and is ignored; did you mean INFERENCE_MODEL_NAME?"


def test_an_empty_variable_is_as_good_as_none() -> None:
    assert parse(MODEL, {"INFERENCE_PORT": "", "INFERENCE_WORKERS": ""}) == parse(MODEL, {})


def test_a_class_behind_a_python_file_is_the_parameter_that_names_it() -> None:
    for path in ("models/m.py:Scorer", "s3://bucket/m.py:Scorer"):
        model = parse([f"--model-path={path}", "--model-parameter=size=3"], {}).model
        assert (model.path, model.parameters) == (path.removesuffix(":Scorer"), {"class": "Scorer", "size": "3"})
    assert parse(["--model-path=m.py:9"], {}).model.path == "m.py:9"
