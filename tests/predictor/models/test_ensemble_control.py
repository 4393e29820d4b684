"""Ensembles and the models that they are made of: loaded, unloaded and refused together."""

from pathlib import Path

import pytest
from tests.eventually import eventually_async
from tests.predictor.in_process_server import House, play, write_ensemble, write_times

from pilotlight_predictor.errors import NotReady


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
        await eventually_async(lambda: set(house.states().values()) == {"UNAVAILABLE"})

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
