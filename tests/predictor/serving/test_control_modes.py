"""What is served under each control mode, while the repository changes under the server."""

import asyncio
import logging
import shutil
from pathlib import Path

import pytest
from tests.predictor.scheduling.instances import until
from tests.predictor.serving.house import (
    BROKEN,
    House,
    play,
    replace_file,
    write_ensemble,
    write_times,
)

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

    play(scene())


def test_poll_adds_replaces_and_removes_versions_and_models(tmp_path: Path) -> None:
    async def scene() -> None:
        folder = write_times(tmp_path, "m", 2)
        house = await House(tmp_path, mode="poll").start()
        assert await house.ask("m") == 2
        write_times(tmp_path, "m", 3, version=2)
        write_times(tmp_path, "new", 5)
        await house.polled()
        assert (await house.ask("m"), await house.ask("new")) == (3, 5)
        assert isinstance(await absent(house, "m", 1), NotFound)  # latest: version 1 has made room
        write_times(tmp_path, "m", 4, version=2)
        await house.polled()
        assert await house.ask("m") == 4
        shutil.rmtree(folder / "2")
        await house.polled()
        assert await house.ask("m") == 2
        shutil.rmtree(tmp_path / "new")
        await house.polled()
        assert isinstance(await absent(house, "new"), NotFound)
        assert house.server.readiness().ready

    play(scene())


async def absent(house: House, model: str, version: int = -1) -> Exception | None:
    try:
        await house.ask(model, version=version)
    except (NotFound, NotReady) as error:
        return error
    return None


def test_a_version_that_left_the_disk_leaves_index_and_metrics(tmp_path: Path) -> None:
    async def scene() -> None:
        folder = write_times(tmp_path, "m", 2, ALL)
        write_times(tmp_path, "m", 3, version=2)
        house = await House(tmp_path, mode="poll").start()
        assert (await house.ask("m", version=1), await house.ask("m", version=2)) == (2, 3)
        shutil.rmtree(folder / "1")
        await house.polled()
        await until(lambda: house.states() == {"m/2": "READY"})
        assert list(house.metrics.models) == [("m", 2)]

    play(scene())


def test_a_failed_reload_keeps_the_old_and_the_index_says_so(tmp_path: Path) -> None:
    async def scene() -> None:
        folder = write_times(tmp_path, "m", 2)
        house = await House(tmp_path, mode="poll").start()
        replace_file(folder / "1/model.py", BROKEN)
        await house.polled()
        assert await house.ask("m") == 2
        assert house.states() == {"m/1": "READY"}
        assert "the last reload failed, what was loaded before goes on" in house.reasons()["m/1"]
        assert house.server.readiness().ready
        write_times(tmp_path, "m", 3)
        await house.polled()
        assert await house.ask("m") == 3
        assert house.reasons() == {}

    play(scene())


def test_a_broken_configuration_or_new_version_also_keeps_the_old(tmp_path: Path) -> None:
    async def scene() -> None:
        folder = write_times(tmp_path, "m", 2)
        house = await House(tmp_path, mode="poll").start()
        replace_file(folder / "config.pbtxt", "max_batch_size: {")
        await house.polled()
        assert await house.ask("m") == 2
        assert "config.pbtxt" in house.reasons()["m/1"]
        (folder / "config.pbtxt").unlink()
        write_times(tmp_path, "m", 9, version=2)
        replace_file(folder / "2/model.py", BROKEN)
        await house.polled()
        assert await house.ask("m") == 2
        assert house.states() == {"m/1": "READY", "m/2": "UNAVAILABLE"}

    play(scene())


def test_a_file_still_being_written_is_not_loaded(tmp_path: Path) -> None:
    async def scene() -> None:
        folder = write_times(tmp_path, "m", 2)
        house = await House(tmp_path, mode="poll").start()
        (folder / "2").mkdir()
        whole = (folder / "1/model.py").read_text().replace("* 2", "* 7")
        for length in (20, 60, len(whole)):
            (folder / "2/model.py").write_text(whole[:length])
            await house.control.poll()
            assert await house.ask("m") == 2
            assert house.states() == {"m/1": "READY"}
        await house.control.poll()
        assert await house.ask("m") == 7

    play(scene())


def test_a_file_that_changes_while_it_is_loaded_at_start_is_loaded_again(tmp_path: Path) -> None:
    async def scene() -> None:
        folder = write_times(tmp_path, "m", 2)
        swap = (
            "import os\n"
            f"os.replace({str(folder / 'next.py')!r}, {str(folder / '1/model.py')!r})\n"
            + (folder / "1/model.py").read_text()
        )
        write_times(tmp_path / "elsewhere", "m", 5)
        shutil.copy(tmp_path / "elsewhere/m/1/model.py", folder / "next.py")
        shutil.rmtree(tmp_path / "elsewhere")
        (folder / "1/model.py").write_text(swap)
        house = await House(tmp_path, mode="poll").start()
        assert await house.ask("m") == 2
        await house.polled()
        assert await house.ask("m") == 5

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


def test_versions_follow_a_changed_policy(tmp_path: Path) -> None:
    async def scene() -> None:
        folder = write_times(tmp_path, "m", 1, ALL)
        write_times(tmp_path, "m", 2, version=2)
        house = await House(tmp_path, mode="poll").start()
        replace_file(folder / "config.pbtxt", "version_policy { specific { versions: 1 } }")
        await house.polled()
        assert await house.ask("m") == 1
        await until(lambda: house.states() == {"m/1": "READY", "m/2": "UNAVAILABLE"})
        assert house.reasons()["m/2"] == "unloaded by the version policy"
        with pytest.raises(NotFound, match="version 2 is not found: unloaded by the version policy"):
            await house.ask("m", version=2)
        replace_file(folder / "config.pbtxt", "version_policy { specific { versions: 7 } }")
        await house.polled()
        assert await house.ask("m") == 1, "a policy that chooses nothing changes nothing"

    play(scene())


def test_versions_mode_follows_versions_but_not_the_set_of_models(tmp_path: Path) -> None:
    async def scene() -> None:
        folder = write_times(tmp_path, "m", 2)
        house = await House(tmp_path, mode="versions").start()
        write_times(tmp_path, "m", 3, version=2)
        write_times(tmp_path, "new", 5)
        await house.polled()
        assert await house.ask("m") == 3
        assert isinstance(await absent(house, "new"), NotFound)
        shutil.rmtree(folder)
        await house.polled()
        assert await house.ask("m") == 3, "the set of models is fixed"

    play(scene())


def test_an_empty_repository_is_ready_only_where_models_come_by_call(tmp_path: Path) -> None:
    async def scene() -> None:
        house = await House(tmp_path).start()
        assert house.server.readiness().reason == "no model was found to serve"
        assert (await House(tmp_path, mode="explicit").start()).server.readiness().ready

    play(scene())


def test_a_polled_repository_that_was_empty_at_start_becomes_ready_with_its_first_model(tmp_path: Path) -> None:
    async def scene() -> None:
        house = await House(tmp_path, mode="poll").start()
        assert not house.server.readiness().ready
        write_times(tmp_path, "m", 2)
        await house.polled()
        assert house.server.readiness().ready

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
        house = await House(tmp_path, mode="explicit", model={"load_models": ("a", "ghost")}).start()
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
        assert not house.server.heal()
        assert "is not a directory" in house.server.readiness().reason
        write_times(tmp_path / "nowhere", "m", 2)
        write_times(tmp_path / "nowhere", "other", 3)
        if mode == "none":
            return
        if mode == "explicit":
            await house.control.load("other", None, {})
            assert not house.server.heal()
            assert house.server.readiness().reason == "model 'm': unloaded"
            await house.control.load("m", None, {})
        else:
            await house.polled()
        assert house.server.heal()
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
    for module in ("control", "registry"):
        play(scene(f"pilotlight_predictor.{module}.check_source"))
    play(scene("pilotlight_predictor.opening.ServedVersion"))


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


def test_an_ensemble_brings_its_models_and_takes_them_with_it_when_asked(tmp_path: Path) -> None:
    async def scene() -> None:
        write_times(tmp_path, "two", 2)
        write_times(tmp_path, "three", 3)
        write_ensemble(tmp_path, "ensemble_inner", "two", "three")
        write_ensemble(tmp_path, "ensemble_outer", "ensemble_inner", "two")
        house = await House(tmp_path, mode="explicit").start()
        await house.control.load("ensemble_outer", None, {})
        assert set(house.states().values()) == {"READY"}
        assert await house.ask("ensemble_outer") == 12
        await house.control.unload("ensemble_outer", False)
        assert await house.ask("two") == 2
        await house.control.load("ensemble_outer", None, {})
        await house.control.unload("ensemble_outer", True)
        await until(lambda: set(house.states().values()) == {"UNAVAILABLE"})

    play(scene())


def test_an_ensemble_unloaded_with_its_models_leaves_the_server_ready_and_nothing_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        write_times(tmp_path / "models", "two", 2)
        write_ensemble(tmp_path / "models", "ensemble", "two")
        model = {"load_models": ("*",), "allow_inline_files": True}
        house = await House(tmp_path / "models", mode="explicit", model=model).start()
        sent = (tmp_path / "models/two/1/model.py").read_bytes()
        await house.control.load("two", {"backend": "python"}, {"1/model.py": sent})
        await house.control.unload("ensemble", True)
        assert house.server.readiness().ready, "an operator took both away"
        assert not list(tmp_path.glob("pilotlight-inline-*"))

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


def test_an_ensemble_whose_model_is_missing_is_not_ready_until_it_comes(tmp_path: Path) -> None:
    async def scene() -> None:
        write_times(tmp_path, "two", 2)
        write_ensemble(tmp_path, "ensemble", "two", "three")
        house = await House(tmp_path, mode="poll").start()
        assert house.states() == {"ensemble/1": "UNAVAILABLE", "two/1": "READY"}
        assert "its model 'three' is not ready" in house.reasons()["ensemble/1"]
        assert house.server.readiness().reason.startswith("model 'ensemble': its model 'three'")
        with pytest.raises(NotReady, match="ensemble 'ensemble' cannot run"):
            await house.ask("ensemble")
        write_times(tmp_path, "three", 3)
        await house.polled()
        assert await house.ask("ensemble") == 6
        assert house.server.readiness().ready

    play(scene())


def test_models_that_ensembles_share_are_loaded_once(tmp_path: Path) -> None:
    async def scene() -> None:
        repository = tmp_path / "models"
        folder = write_times(repository, "two", 2)
        noting = f"with open({str(tmp_path / 'loads')!r}, 'a') as loads:\n    loads.write('x')\n"
        noted = noting + (folder / "1/model.py").read_text()
        (folder / "1/model.py").write_text(noted)
        write_ensemble(repository, "ensemble_a", "two")
        write_ensemble(repository, "ensemble_b", "two", "two")
        house = await House(repository, mode="explicit", model={"load_models": ("*",)}).start()
        assert (await house.ask("ensemble_a"), await house.ask("ensemble_b")) == (2, 4)
        assert (tmp_path / "loads").read_text() == "x"
        await house.control.load("two", None, {})
        assert (tmp_path / "loads").read_text() == "xx", "but an operator's call loads anew"

    play(scene())


def test_a_model_broken_at_start_is_served_once_it_is_mended(tmp_path: Path) -> None:
    async def scene() -> None:
        write_times(tmp_path, "m", 2)
        good = (tmp_path / "m/1/model.py").read_text()
        (tmp_path / "m/1/model.py").write_text(BROKEN)
        house = await House(tmp_path, mode="poll").start()
        assert not house.server.readiness().ready
        replace_file(tmp_path / "m/1/model.py", good)
        await house.polled()
        assert await house.ask("m") == 2
        assert house.server.readiness().ready

    play(scene())


@pytest.mark.parametrize("mode", ["none", "explicit"])
def test_ensembles_in_a_circle_are_refused_with_the_way_round(tmp_path: Path, mode: str) -> None:
    async def scene() -> None:
        write_ensemble(tmp_path, "ensemble_a", "ensemble_b")
        write_ensemble(tmp_path, "ensemble_b", "ensemble_a")
        write_ensemble(tmp_path, "ensemble_self", "ensemble_self")
        house = await House(tmp_path, mode=mode, model={"load_models": ("*",)}).start()
        assert "READY" not in house.states().values()
        reasons = " ".join(house.reasons().values())
        assert "ensemble_self → ensemble_self" in reasons
        assert "ensemble_a → ensemble_b → ensemble_a" in reasons or "ensemble_b → ensemble_a → ensemble_b" in reasons
        assert not house.server.readiness().ready

    play(scene())


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
