"""A version may be called 0: it is found, pinned and measured as any other, and never taken for "the newest"."""

from pathlib import Path

import pytest
from tests.predictor.in_process_server import House, play, write_ensemble, write_times

from pilotlight_predictor.metrics.collector import collect
from pilotlight_predictor.metrics.exposition import content_type, expose


@pytest.mark.parametrize(("pinned", "expected"), [(0, 30), (1, 50), (-1, 50)])
def test_an_ensemble_runs_the_version_that_it_pins(tmp_path: Path, pinned: int, expected: float) -> None:
    async def scene() -> None:
        write_times(tmp_path, "m", 3, "version_policy { all {} }", version=0)
        write_times(tmp_path, "m", 5, version=1)
        config = write_ensemble(tmp_path, "ensemble", "m") / "config.pbtxt"
        config.write_text(config.read_text().replace("model_version: -1", f"model_version: {pinned}"))
        house = await House(tmp_path).start()
        assert house.server.readiness().ready
        assert await house.ask("ensemble", 10) == expected

    play(scene())


def test_its_metrics_carry_its_number(tmp_path: Path) -> None:
    async def scene() -> None:
        write_times(tmp_path, "m", 3, version=0)
        house = await House(tmp_path).start()
        assert await house.ask("m", 10, 0) == 30
        text = expose(collect(house.metrics), content_type("")).decode()
        assert 'nv_inference_count{model="m",version="0"} 1' in text
        assert 'model="m",version=""' not in text

    play(scene())
