"""Labels stand for versions, shares of an A/B test hold, keys stick, and a swap under load fails nobody."""

import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
from tests.predictor.in_process_server import write_times
from tests.serving import RunningServer

from pilotlight_predictor.config import SettingsError, parse
from pilotlight_predictor.core.requests import NEWEST
from pilotlight_predictor.errors import NotFound
from pilotlight_predictor.models.version_routing import VersionRouter

Serve = Callable[..., RunningServer]
ALL = "version_policy { all {} }"
LABELS = ("--version-label", "v1.0.0=1", "--version-label", "v1.1.0=2", "--version-label", "latest=1")
SPLIT = ("--version-weight", "v1.0.0=80", "--version-weight", "2=20")


def choice(*flags: str) -> VersionRouter:
    return VersionRouter(parse(["--model-path", "x", *flags], {}).model)


def test_labels_are_numbers_and_numbers_have_labels() -> None:
    versions = choice(*LABELS, "--version-label", "iris/stable=7")
    assert [versions.number("m", text) for text in ("v1.0.0", "v1.1.0", "latest", "3", "")] == [1, 2, 1, 3, NEWEST]
    assert (versions.number("iris", "stable"), versions.label("iris", 7)) == (7, "stable")
    assert [versions.label("m", number) for number in (1, 2, 7)] == ["v1.0.0", "v1.1.0", "7"]
    assert choice().number("m", "latest") == NEWEST
    with pytest.raises(NotFound, match=r"must be a number or one of v1\.0\.0, v1\.1\.0, latest$"):
        versions.number("m", "stable")


def test_shares_hold_over_few_requests() -> None:
    versions = choice(*LABELS, *SPLIT)
    drawn = Counter(versions.choose("m", {1, 2}, "") for _ in range(100))
    assert abs(drawn[1] - 80) <= 2
    assert drawn[1] + drawn[2] == 100


def test_a_key_sticks_and_only_its_own_version_moves_it() -> None:
    versions = choice("--version-weight", "1=40", "--version-weight", "2=40", "--version-weight", "3=20")
    keys = [f"user {number}" for number in range(300)]
    first = {key: versions.choose("m", {1, 2, 3}, key) for key in keys}
    assert first == {key: versions.choose("m", {1, 2, 3}, key) for key in keys}
    assert abs(Counter(first.values())[3] - 60) < 30
    without = {key: versions.choose("m", {1, 2}, key) for key in keys}
    assert all(without[key] == version for key, version in first.items() if version != 3)
    assert set(without.values()) == {1, 2}
    assert versions.choose("m", set(), "a") == NEWEST


def test_a_share_whose_version_does_not_serve_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    versions = choice("--version-weight", "1=40", "--version-weight", "2=60")
    assert {versions.choose("m", {1}, "") for _ in range(20)} == {1}
    told = [record.getMessage() for record in caplog.records]
    assert told == ["'m' has traffic for version 2, which is not ready: the other versions get it"]


def test_a_model_may_have_shares_of_its_own() -> None:
    versions = choice("--version-weight", "iris/1=100")
    assert (versions.is_weighted("iris"), versions.is_weighted("m")) == (True, False)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--version-weight", "1=50"), "--version-weight: model.version_weights = 1=50, must add up to 100, not 50"),
        (("--version-weight", "m/1=60", "--version-weight", "m/2=60"), "of 'm' = 1=60, 2=60, must add up to 100"),
        (("--version-weight", "v1=100"), "must be a number or a label given with --version-label"),
        (("--version-weight", "1=101"), "a percentage from 0 to 100"),
        (("--version-weight", "1=-1"), "a percentage from 0 to 100"),
        (("--version-weight", "1=nan"), "a percentage from 0 to 100"),
        (("--version-label", "3=1"), "a label that is not a number"),
        (("--version-label", "v1=x"), "a version number"),
    ],
)
def test_settings_that_cannot_hold_end_the_start(flags: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse(["--model-path", "x", *flags], {})
    assert sentence in str(caught.value)


def test_the_file_has_them_as_mappings(tmp_path: Path) -> None:
    file = tmp_path / "inference.yaml"
    file.write_text("model:\n  path: x\n  version_labels: {v1.2.0: 3}\n  version_weights: {v1.2.0: 90, 2: 10}\n")
    model = parse(["--config", str(file)], {}).model
    assert (model.version_labels, model.version_weights) == ({"v1.2.0": 3}, {"v1.2.0": 90, "2": 10})


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory, serve_module: Serve) -> RunningServer:
    repository = tmp_path_factory.mktemp("split")
    write_times(repository, "m", 10, ALL)
    write_times(repository, "m", 20, version=2)
    return serve_module(repository, *LABELS, *SPLIT)


def ask(server: RunningServer, headers: dict[str, str] | None = None, **body: Any) -> tuple[str, float]:
    answer = server.post("/predict", {"inputs": [1], **body}, headers)
    assert answer.status == 200, answer
    document = answer.json()
    return document["model_version"], document["predictions"][0]


def test_versions_are_asked_for_by_label_or_number(split: RunningServer) -> None:
    assert ask(split, model_version="v1.0.0") == ("v1.0.0", 10)
    assert ask(split, model_version="v1.1.0") == ask(split, model_version="2") == ("v1.1.0", 20)
    assert ask(split, model_version="latest") == ("v1.0.0", 10)
    for absent in ("v9", "9"):
        answer = split.post("/predict", {"inputs": [1], "model_version": absent})
        assert (answer.status, absent in answer.json()["detail"]) == (404, True)


def test_requests_that_name_none_are_shared_out_and_keys_stick(split: RunningServer) -> None:
    drawn = Counter(ask(split)[0] for _ in range(50))
    assert abs(drawn["v1.0.0"] - 40) <= 2
    by_field = {key: {ask(split, sticky_key=key)[0] for _ in range(5)} for key in map(str, range(30))}
    assert all(len(seen) == 1 for seen in by_field.values())
    assert len(set.union(*by_field.values())) == 2
    for key, seen in list(by_field.items())[:10]:
        assert {ask(split, {"X-Sticky-Key": key})[0]} == seen


def test_a_model_path_is_served_under_its_label(tmp_path: Path, serve: Serve) -> None:
    folder = write_times(tmp_path, "m", 10)
    write_times(tmp_path, "m", 20, version=2)
    chosen = serve(None, "--model-path", str(folder), "--model-version", "v1.0.0", "--version-label", "v1.0.0=1")
    assert ask(chosen) == ("v1.0.0", 10)
    assert json.loads(chosen.get("/healthz").body)["model_version"] == "v1.0.0"


def test_a_version_is_swapped_under_load_with_no_failed_request(tmp_path: Path, serve: Serve) -> None:
    repository, stage = tmp_path / "repository", tmp_path / "stage"
    folder = write_times(repository, "m", 10)
    flags = ("--model-control-mode", "poll", "--repository-poll-secs", "0.05", "--rate-limit-enabled=false")
    server = serve(repository, *flags)
    answers: list[tuple[int, Any]] = []
    stop = threading.Event()

    def load() -> None:
        with requests.Session() as session:
            while not stop.is_set():
                answer = session.post(f"{server.url}/predict", json={"batch": [[1], [2], [3]]}, timeout=20)
                answers.append((answer.status_code, answer.json()))

    clients = [threading.Thread(target=load) for _ in range(3)]
    for client in clients:
        client.start()
    try:
        server.wait_until(lambda: answers, "asked before the first swap")
        for version in (2, 3, 4):
            staged = write_times(stage, "m", version * 10, version=version) / str(version)
            staged.rename(folder / str(version))
            server.wait_until(lambda v=version: ask(server)[0] == str(v), f"serving version {version}")
        count = len(answers) + len(clients)  # one of them at least was asked for after the last swap
        server.wait_until(lambda: len(answers) > count, "asked after the last swap")
    finally:
        stop.set()
        for client in clients:
            client.join()
    assert {status for status, _ in answers} == {200}
    for _, document in answers:
        factor = int(document["model_version"]) * 10
        assert document["predictions"] == [[factor], [2 * factor], [3 * factor]]
    assert {document["model_version"] for _, document in answers} >= {"1", "4"}
