"""Programs are run without a shell, and what they say is told without secrets."""

import os
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from pilotlight.errors import PlatformError, TimedOut
from pilotlight.microservices.platforms.commands import Programs, exports, set_secrets, shown
from pilotlight.microservices.platforms.docker import gpus_here
from pilotlight.microservices.registry.records import Job

JOB = Job("4ca2f1e6-0d5f-4d39-9a55-6a4f1e3d2b10", "a", "/m", "image", "run", secrets=("HF_TOKEN", "MY_OWN"))
ENVIRON = {**os.environ, "HF_TOKEN": "hf_planted0123", "MY_OWN": "another-planted"}


def test_the_values_of_secrets_are_taken_out_of_what_a_program_says() -> None:
    code = "import os, sys; print(os.environ['HF_TOKEN']); sys.exit('refused: ' + os.environ['MY_OWN'])"
    with pytest.raises(PlatformError) as refused:
        Programs(ENVIRON).redacting(JOB).run_checked([sys.executable, "-c", code])
    assert str(refused.value).endswith("failed: refused: <MY_OWN>")
    assert Programs(ENVIRON).run([sys.executable, "-c", code]).out == "<HF_TOKEN>\n"


def test_a_program_that_is_not_there_and_one_that_does_not_end_are_named() -> None:
    with pytest.raises(PlatformError, match="no-such-program is not on the PATH"):
        Programs(ENVIRON).run(["no-such-program"])
    with pytest.raises(TimedOut, match=r"did not answer within 0\.2 s"):
        Programs(ENVIRON).run([sys.executable, "-c", "import time; time.sleep(60)"], timeout_s=0.2)


def test_only_the_last_words_of_a_failure_are_told() -> None:
    code = "import sys; sys.stderr.write('a\\nb\\n\\nc: no such thing\\n'); sys.exit(3)"
    assert Programs(ENVIRON).run([sys.executable, "-c", code]).summary == "c: no such thing"
    assert Programs(ENVIRON).run([sys.executable, "-c", "raise SystemExit(3)"]).summary == "exit code 3"


def test_a_call_is_named_by_program_and_verb() -> None:
    assert shown(["docker", "run", "--env", "A=b"]) == "docker run"
    assert shown(["sbatch", "--parsable"]) == "sbatch"


def test_secrets_that_are_not_set_are_left_out() -> None:
    assert set_secrets(JOB, {"HF_TOKEN": "x", "MY_OWN": ""}) == ("HF_TOKEN",)
    assert set_secrets(replace(JOB, secrets=()), ENVIRON) == ()


def test_exports_are_lines_of_a_shell() -> None:
    assert exports({"A": "b c", "D": "it's"}) == "export A='b c'\nexport D='it'\"'\"'s'\n"


def test_how_a_machine_hands_out_gpus(tmp_path: Path) -> None:
    root = tmp_path
    assert gpus_here({}, root) == "none"
    assert gpus_here({"DOCKER_HOST": "ssh://elsewhere"}, root) == "requests"
    (root / "dev").mkdir()
    (root / "dev/nvidiactl").touch()
    assert gpus_here({"DOCKER_HOST": "unix:///run/docker.sock"}, root) == "requests"
    (root / "etc").mkdir()
    (root / "etc/nv_tegra_release").touch()
    assert gpus_here({}, root) == "tegra"
