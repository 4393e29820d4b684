"""`platformctl up --prometheus` as it is typed: one comes with the platform, is told of, and goes with it."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.embedded import processes_of
from tests.ports import free_port

from pilotlight.targets.local.home_directory import Home

ROOT = Path(__file__).resolve().parents[3]


def typed(home: Home, *argv: str) -> tuple[int, str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PILOTLIGHT_", "INFERENCE_"))}
    env = {**clean, "PILOTLIGHT_HOME": str(home.root), "PILOTLIGHT_SERVICE_PORTS": "0"}
    command = [sys.executable, "-m", "platformctl", *argv]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def test_it_comes_with_up_and_goes_with_down(prometheus_program: str, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    ports = ("--gateway-port", str(free_port()), "--api-port", str(free_port()))
    try:
        code, out, err = typed(home, "up", f"--prometheus={prometheus_program}", *ports, "-o", "json")
        assert code == 0, err
        url = json.loads(out)["prometheus"]
        assert url.startswith("http://127.0.0.1:")
        _, out, _ = typed(home, "doctor", "-o", "json")
        assert any(url in each["message"] for each in json.loads(out)["checks"])
        assert (home.root / "prometheus" / "data").is_dir()
    finally:
        code, _, err = typed(home, "down")
    assert code == 0, err
    assert not processes_of(home)


def test_a_platform_that_cannot_start_leaves_none_behind(prometheus_program: str, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ports = ("--gateway-port", port, "--api-port", str(free_port()))
        code, _, err = typed(home, "up", f"--prometheus={prometheus_program}", *ports)
    assert code == 1, err
    assert port in err
    assert not processes_of(home)
