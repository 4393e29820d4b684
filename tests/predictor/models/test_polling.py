"""What is served while the repository changes under a server that looks at it."""

import shutil
from pathlib import Path

import pytest
from tests.eventually import eventually_async
from tests.predictor.in_process_server import BROKEN, House, absent, play, replace_file, write_times

from pilotlight_predictor.errors import NotFound

ALL = "version_policy { all {} }"


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


def test_a_version_that_left_the_disk_leaves_index_and_metrics(tmp_path: Path) -> None:
    async def scene() -> None:
        folder = write_times(tmp_path, "m", 2, ALL)
        write_times(tmp_path, "m", 3, version=2)
        house = await House(tmp_path, mode="poll").start()
        assert (await house.ask("m", version=1), await house.ask("m", version=2)) == (2, 3)
        shutil.rmtree(folder / "1")
        await house.polled()
        await eventually_async(lambda: house.states() == {"m/2": "READY"})
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
        assert "the last reload failed, the version loaded before keeps serving" in house.reasons()["m/1"]
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


def test_versions_follow_a_changed_policy(tmp_path: Path) -> None:
    async def scene() -> None:
        folder = write_times(tmp_path, "m", 1, ALL)
        write_times(tmp_path, "m", 2, version=2)
        house = await House(tmp_path, mode="poll").start()
        replace_file(folder / "config.pbtxt", "version_policy { specific { versions: 1 } }")
        await house.polled()
        assert await house.ask("m") == 1
        await eventually_async(lambda: house.states() == {"m/1": "READY", "m/2": "UNAVAILABLE"})
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


def test_a_polled_repository_that_was_empty_at_start_becomes_ready_with_its_first_model(tmp_path: Path) -> None:
    async def scene() -> None:
        house = await House(tmp_path, mode="poll").start()
        assert not house.server.readiness().ready
        write_times(tmp_path, "m", 2)
        await house.polled()
        assert house.server.readiness().ready

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
