"""docs/getting-started.md works as it stands there: its files are written, its commands run in their order."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import ROOT
from tests.embedded import processes_of
from tests.ports import free_port

from pilotlight.targets.local.home_directory import Home

PAGE = (ROOT / "docs/getting-started.md").read_text()
FILES = re.findall(r"^```python\n# (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
CONSOLE = "".join(re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
STEPS = re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", CONSOLE, re.MULTILINE)  # a command, and what it prints
# What differs from run to run: times, hashes of revisions.
VARIES = re.compile(r"\d+\.\ds|(?<=cold-start: )\d+|-[0-9a-f]{8}\b")


def test_the_tour_works_as_it_stands_there(tmp_path: Path) -> None:
    """`# exit 1` names another exit code than 0. Lines that the page shows are printed, but for what varies."""
    port, home = str(free_port()), tmp_path / "home"
    folder = tmp_path / "tour"
    for name, text in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text.replace("8090", port))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PILOTLIGHT_", "INFERENCE_"))}
    env |= {"PILOTLIGHT_HOME": str(home), "PILOTLIGHT_GATEWAY_PORT": port, "PILOTLIGHT_API_PORT": str(free_port())}
    env |= {"PILOTLIGHT_SERVICE_PORTS": "0", "PATH": path}
    try:
        for command, shown in STEPS:
            run(command.replace("8090", port), shown.replace("8090", port), folder, env)
    finally:
        subprocess.run([sys.executable, "-m", "platformctl", "down"], env=env, capture_output=True, timeout=60)
    assert processes_of(Home(home)) == []


def run(command: str, shown: str, folder: Path, env: dict[str, str]) -> None:
    expected = int(match.group(1)) if (match := re.search(r"# exit (\d)", command)) else 0
    words = ["bash", "-o", "pipefail", "-c", command]
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    printed = done.stdout + done.stderr
    assert done.returncode == expected, f"{command}\n{printed}"
    lines = {constant(line) for line in printed.splitlines()}
    assert not [line for line in shown.splitlines() if constant(line) not in lines], f"{command}\n{printed}"


def constant(line: str) -> str:
    return " ".join(VARIES.sub("", line).split())
