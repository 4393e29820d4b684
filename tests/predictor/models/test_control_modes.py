"""What is served under each control mode, at start and by calls."""

import asyncio
import logging
from pathlib import Path

import pytest
from tests.predictor.in_process_server import BROKEN, House, absent, play, replace_file, write_times

from pilotlight_predictor.errors import BadRequest, LoadFailed, NotFound, NotReady

ALL = "version_policy { all {} }"


def test_none_loads_all_at_start_and_refuses_calls(tmp_path: Path) -> None:
    async def scene() -> None:
        write_times(tmp_path, "two", 2)
        write_times(tmp_path, "three", 3)
        house = await House(tmp_path).start()
        assert (await house.ask("two"), await house.ask("three")) == (2, 3)
        for call in (house.control.load("two", None, {}), house.control.unload("two", False)):
            with pytest.raises(BadRequest, match="explicit model load / unload is not allowed if polling is enabled"):
                await call
        assert house.server.readiness().ready

    play(scene())


def test_a_broken_model_leaves_its_neighbours_serving_and_the_server_not_ready(tmp_path: Path) -> None:
    async def scene() -> None:
        write_times(tmp_path, "good", 2)
        write_times(tmp_path, "bad", 1)
        (tmp_path / "bad/1/model.py").write_text(BROKEN)
        house = await House(tmp_path).start()
        assert await house.ask("good") == 2
        assert house.states() == {"bad/1": "UNAVAILABLE", "good/1": "READY"}
        verdict = house.server.readiness()
        assert (verdict.ready, verdict.state) == (False, "failed")
        assert verdict.reason.startswith("model 'bad': ")
        refusal = str(await absent(house, "bad"))
        assert "it failed to load; GET /v2/models/bad/ready" in refusal
        assert house.reasons()["bad/1"] not in refusal, "it may have paths of this machine"

    play(scene())


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("", {3: 3}),
        ("version_policy { latest { num_versions: 2 } }", {2: 2, 3: 3}),
        (ALL, {1: 1, 2: 2, 3: 3}),
        ("version_policy { specific { versions: [1, 3, 9] } }", {1: 1, 3: 3}),
    ],
)
def test_the_version_policy_chooses_and_a_request_without_a_version_gets_the_newest(
    tmp_path: Path, policy: str, expected: dict[int, float]
) -> None:
    async def scene() -> None:
        for version in (1, 2, 3):
            write_times(tmp_path, "m", version, policy if version == 1 else "", version)
        house = await House(tmp_path).start()
        assert {
            served.version: await house.ask("m", version=served.version) for served in house.registry.served("m")
        } == (expected)
        assert await house.ask("m") == 3

    play(scene())


def test_an_empty_repository_is_ready_only_where_models_come_by_call(tmp_path: Path) -> None:
    async def scene() -> None:
        house = await House(tmp_path).start()
        assert house.server.readiness().reason == "no model found"
        assert (await House(tmp_path, mode="explicit").start()).server.readiness().ready

    play(scene())


def test_explicit_loads_what_is_named_and_what_is_asked_for(tmp_path: Path) -> None:
    async def scene() -> None:
        for name, factor in (("a", 2), ("b", 3)):
            write_times(tmp_path, name, factor)
        house = await House(tmp_path, mode="explicit", model={"load_models": ("a",)}).start()
        assert house.states() == {"a/1": "READY", "b": "UNAVAILABLE"}
        assert house.reasons() == {"b": "unloaded"}
        assert await house.ask("a") == 2
        await house.control.load("b", None, {})
        assert await house.ask("b") == 3
        await house.control.unload("a", False)
        assert "has no available versions: unloaded" in str(await absent(house, "a"))
        assert house.server.readiness().ready, "an operator took it away"
        with pytest.raises(NotFound, match="failed to load 'nowhere': it is in none of the model repositories"):
            await house.control.load("nowhere", None, {})

    play(scene())


def test_a_star_loads_everything_and_an_unknown_name_leaves_the_server_unready(tmp_path: Path) -> None:
    async def scene() -> None:
        write_times(tmp_path, "a", 2)
        write_times(tmp_path, "b", 3)
        house = await House(tmp_path, mode="explicit", model={"load_models": ("*",)}).start()
        assert set(house.states().values()) == {"READY"}
        for strict in (False, True):
            server, model = {"strict_readiness": strict}, {"load_models": ("a", "ghost")}
            house = await House(tmp_path, mode="explicit", model=model, server=server).start()
            assert await house.ask("a") == 2
            assert house.server.readiness().reason == "model 'ghost': 'ghost' is not in the repository"

    play(scene())


def test_strict_readiness_counts_every_model_that_was_asked_for_and_no_other(tmp_path: Path) -> None:
    async def scene() -> None:
        write_times(tmp_path, "a", 2)
        write_times(tmp_path, "never loaded", 2)
        write_times(tmp_path, "bad", 2)
        (tmp_path / "bad/1/model.py").write_text(BROKEN)
        loads = {"load_models": ("a",)}
        strict = await House(tmp_path, mode="explicit", model=loads, server={"strict_readiness": True}).start()
        loose = await House(tmp_path, mode="explicit", model=loads).start()
        assert strict.server.readiness().ready
        for house in (strict, loose):
            with pytest.raises(LoadFailed):
                await house.control.load("bad", None, {})
        assert loose.server.readiness().ready, "an extra load never drops readiness"
        assert strict.server.readiness().reason.startswith("model 'bad'")

    play(scene())


def test_a_configuration_given_with_the_call_replaces_the_models_own(tmp_path: Path) -> None:
    async def scene() -> None:
        for version in (1, 2):
            write_times(tmp_path, "m", version, version=version)
        house = await House(tmp_path, mode="explicit").start()
        await house.control.load("m", {"version_policy": {"specific": {"versions": [1]}}}, {})
        assert await house.ask("m") == 1
        await house.control.load("m", None, {})
        assert await house.ask("m") == 2
        with pytest.raises(BadRequest, match="name = 'other', must be 'm'"):
            await house.control.load("m", {"name": "other"}, {})

    play(scene())


def test_files_within_a_call_are_served_and_removed_with_their_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        write_times(tmp_path / "other", "m", 4)
        source = (tmp_path / "other/m/1/model.py").read_bytes()
        (tmp_path / "empty").mkdir()
        house = await House(tmp_path / "empty", mode="explicit", model={"allow_inline_files": True}).start()
        await house.control.load("inline", {"backend": "python"}, {"1/model.py": source})
        assert await house.ask("inline") == 4
        await house.control.load("inline", {"backend": "python"}, {"7/model.py": source.replace(b"* 4", b"* 6")})
        assert await house.ask("inline") == 6
        with pytest.raises(LoadFailed):
            await house.control.load("inline", {"backend": "python"}, {"1/model.py": BROKEN.encode()})
        assert await house.ask("inline") == 6
        assert len(list(tmp_path.glob("pilotlight-inline-*"))) == 1
        await house.control.unload("inline", False)
        assert not list(tmp_path.glob("pilotlight-inline-*"))

    play(scene())


def test_of_two_repositories_with_one_name_the_first_wins_aloud_and_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        write_times(tmp_path / "one", "m", 2)
        write_times(tmp_path / "two", "m", 3)
        write_times(tmp_path / "two", "n", 5)
        house = await House(tmp_path / "one", tmp_path / "two", mode="poll").start()
        await house.polled()
        assert (await house.ask("m"), await house.ask("n")) == (2, 5)

    with caplog.at_level(logging.WARNING):
        play(scene())
    assert caplog.text.count("'m' is in several repositories") == 1


def test_a_repository_that_cannot_be_read_is_a_reason_and_not_a_crash(tmp_path: Path) -> None:
    async def scene() -> None:
        house = House(tmp_path / "nowhere", mode="poll")
        with pytest.raises(LoadFailed, match="is not a directory"):
            await house.start()
        assert isinstance(await absent(house, "m"), NotReady), "nobody can tell yet whether it exists"
        write_times(tmp_path / "nowhere", "m", 2)
        await house.polled()
        assert await house.ask("m") == 2

    play(scene())


@pytest.mark.parametrize("mode", ["none", "poll", "versions", "explicit"])
def test_a_start_that_could_not_read_the_repository_keeps_its_reason_until_it_can(tmp_path: Path, mode: str) -> None:
    async def scene() -> None:
        named = {"load_models": ("m",)} if mode == "explicit" else {}
        house = House(tmp_path / "nowhere", mode=mode, model=named)
        with pytest.raises(LoadFailed):
            await house.start()
        assert not house.server.recover()
        assert "is not a directory" in house.server.readiness().reason
        write_times(tmp_path / "nowhere", "m", 2)
        write_times(tmp_path / "nowhere", "other", 3)
        if mode == "none":
            return
        if mode == "explicit":
            await house.control.load("other", None, {})
            assert not house.server.recover()
            assert house.server.readiness().reason == "model 'm': unloaded"
            await house.control.load("m", None, {})
        else:
            await house.polled()
        assert house.server.recover()
        assert await house.ask("m") == 2
        assert house.server.readiness().ready

    play(scene())


def test_a_load_that_ends_unexpectedly_says_so_and_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def burst(*_: object) -> None:
        raise MemoryError("no room")

    async def scene(where: str) -> None:
        house = House(tmp_path, mode="explicit", model={"load_models": ("m",)})
        monkeypatch.setattr(where, burst)
        await house.start()
        assert house.server.readiness().reason == "model 'm': MemoryError: no room"
        assert house.states() in ({"m": "UNAVAILABLE"}, {"m/1": "UNAVAILABLE"})
        monkeypatch.undo()
        await house.control.load("m", None, {})
        assert await house.ask("m") == 2
        assert house.server.readiness().ready

    write_times(tmp_path, "m", 2)
    for module in ("control_modes", "registry"):
        play(scene(f"pilotlight_predictor.models.{module}.check_source"))
    play(scene("pilotlight_predictor.models.load_queue.ModelVersion"))


def test_a_model_is_loading_and_not_unknown_from_the_first_moment(tmp_path: Path) -> None:
    async def scene() -> None:
        write_times(tmp_path, "m", 2)
        house = House(tmp_path)
        assert isinstance(await absent(house, "m"), NotReady)
        starting = asyncio.ensure_future(house.start())
        while not starting.done():
            assert not isinstance(await absent(house, "m"), NotFound)
            await asyncio.sleep(0)
        assert await house.ask("m") == 2
        assert isinstance(await absent(house, "other"), NotFound)

    play(scene())


def test_what_becomes_of_a_model_is_logged_as_events_with_its_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        folder = write_times(tmp_path, "m", 2)
        house = await House(tmp_path, mode="explicit", model={"load_models": ("m",)}).start()
        replace_file(folder / "config.pbtxt", "max_batch_size: {")
        with pytest.raises(LoadFailed):
            await house.control.load("m", None, {})
        await house.control.unload("m", False)

    with caplog.at_level(logging.INFO):
        play(scene())
    events = {vars(record).get("event"): vars(record).get("fields", {}) for record in caplog.records}
    assert {"model.loaded", "model.failed", "model.unloaded"} <= events.keys()
    assert {fields["model"] for event, fields in events.items() if event} == {"m"}
    assert events["model.loaded"]["phases"].keys() >= {"load", "warmup"}


@pytest.mark.parametrize(
    ("version", "expected"),
    [("latest", 2), ("1", 1), ("9", "is not in .*which has 1, 2"), ("new", "must be latest or a number")],
)
def test_of_a_model_path_with_versions_the_one_asked_for_is_served(
    tmp_path: Path, version: str, expected: float | str
) -> None:
    async def scene() -> None:
        for number in (1, 2):
            write_times(tmp_path, "m", number, version=number)
        house = House(model={"path": str(tmp_path / "m"), "version": version})
        if isinstance(expected, str):
            with pytest.raises(LoadFailed, match=expected):
                await house.start()
        else:
            await house.start()
            assert await house.ask("m") == expected

    play(scene())
