"""Models that write without end: their logs stay within bounds, they answer, and their logs go with them."""

from pathlib import Path

import pytest
from tests.embedded import Platform
from tests.faults import model, seconds, served

KEY = ("default", "talker")
PATH = "/talker/v2/models/talker/infer"
LIMIT = 1 << 20
# Each request writes so many mebibytes, by Python and past it.
TALKER = """
import os
INPUTS = {"x": ("FP32", [1])}
OUTPUTS = {"y": ("FP32", [1])}

def predict(x):
    for _ in range(int(x[0])):
        print("a line of Python\\n" * 30_000, end="")
        os.write(2, b"a line of something native\\n" * 20_000)
    return x
"""


@pytest.mark.parametrize("pilot_light", ["on", pytest.param("off", marks=pytest.mark.long)])
def test_a_talkative_model_takes_no_more_room_than_the_bound(tmp_path: Path, pilot_light: str) -> None:
    env = {
        "PILOTLIGHT_PILOT_LIGHT": pilot_light, "PILOTLIGHT_LOG_BYTES": str(LIMIT), "PILOTLIGHT_LOG_TOTAL_BYTES": "1",
    }  # fmt: skip
    with Platform(tmp_path / "home", env=env) as platform:
        platform.deploy(served(model(tmp_path / "model", TALKER), "talker"))
        platform.wait_phase("Ready", name="talker")
        if pilot_light == "on":
            platform.wait(lambda: any(platform.home.run.glob("pilot-*.sock")), "the pilot light to burn")
            platform.target.scale(KEY, {"minReplicas": 2, "maxReplicas": 2})
            platform.wait(lambda: platform.status("talker").revisions[0].ready == 2, "the forked replica")
        for _ in range(4):
            assert platform.ask(PATH, seconds(50)).status == 200
        folder = platform.home.logs / "default/talker"
        sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
        assert max(sizes.values()) <= LIMIT
        assert sum(name.endswith(".2") for name in sizes) == (2 if pilot_light == "on" else 1), sizes
        assert {file.stat().st_mode & 0o777 for file in platform.home.logs.rglob("*.log*")} == {0o600}
        lines = list(platform.target.logs(KEY, follow=False, previous=False, replica="", tail=9))
        assert any("a line of" in line for line in lines)
        platform.target.delete(KEY)
        platform.wait(lambda: not folder.exists(), "the logs to go: all of them are above the bound")
