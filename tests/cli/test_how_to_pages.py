"""The how-to pages work as they stand there: their files are written and their commands run in order, on a platform of
their own, with the exit code and the output that the page shows.

A block of a page whose first line is a comment with a file name (`# train.py`) is that file. In `console` blocks each
line with `$ ` is a command, `# exit 5` at its end names its exit code, and the lines below it are lines of its output,
in their order; numbers, hashes and times are not compared. Blocks in other languages are only read. A page with the
comment `<!-- test: long -->` is part of `make test-long`. `UPDATE_PAGES=1` writes the output into the page.
"""

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.cli.conftest import ROOT
from tests.embedded import processes_of
from tests.eventually import eventually
from tests.ports import free_port, free_range

from pilotlight.targets.local.home_directory import Home

FOLDER = ROOT / "docs/how-to"
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# ([\w./-]+\.\w+)\n")
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n?", re.MULTILINE)
LONG = "<!-- test: long -->"
STEPS_S = 300.0
# What differs from run to run: hashes and numbers, then their units, then the widths of columns.
VARYING = (
    (r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b(?=\w*\d)[0-9a-f]{8,64}\b|\d+(?:[.,]\d+)*", "N"),
    (r"N (?:ms|s|MB|GB|KiB|MiB)\b", "N U"),
    (r"\s+", " "),
)


class Step(NamedTuple):
    """A file to write, or a command with the lines that the page shows below it."""

    command: str = ""
    shown: tuple[str, ...] = ()
    file: str = ""
    content: str = ""

    @property
    def exit_code(self) -> str:
        found = re.search(r"# exit (\d+)$", self.command)
        return found[1] if found else "0"


def steps(page: Path) -> Iterator[Step]:
    for _, language, indented in BLOCK.findall(page.read_text()):
        text = textwrap.dedent(indented)
        if language == "console":
            _, *parts = COMMAND.split(text)
            for command, shown in zip(parts[::2], parts[1::2], strict=True):
                yield Step(command, tuple(line for line in shown.splitlines() if line.strip("… ")))
        elif named := NAMED.match(text):
            yield Step(file=named[1], content=text)


def pages() -> list[object]:
    found = [page for page in sorted(FOLDER.glob("*.md")) if any(step.command for step in steps(page))]
    return [
        pytest.param(page, id=page.stem, marks=[pytest.mark.long] if LONG in page.read_text() else []) for page in found
    ]


def script(todo: list[Step], logs: Path) -> str:
    """One shell for all steps, so that variables and background processes live on; it ends at the first wrong exit."""
    lines = ["set -o pipefail"]
    for i, step in enumerate(todo):
        if step.file:
            lines += [f"mkdir -p {Path(step.file).parent}", f"cat > {step.file} <<'END OF FILE'", step.content.rstrip()]
            lines += ["END OF FILE"]
        else:
            lines += ["{", step.command, f"}} > {logs}/{i} 2>&1 < /dev/null", f"code=$?; echo $code > {logs}/{i}.code"]
            lines += [f"[ $code = {step.exit_code} ] || exit"]
    return "\n".join([*lines, ""])


def comparable(line: str) -> str:
    for pattern, replacement in VARYING:
        line = re.sub(pattern, replacement, line)
    return line.strip()


def differs(shown: tuple[str, ...], printed: list[str]) -> str:
    """The first line of the page that is not printed after the ones before it; empty if all are."""
    rest = iter(map(comparable, printed))
    return next((line for line in shown if comparable(line) not in rest), "")


def update(page: Path, step: Step, printed: list[str]) -> None:
    """Write the output below the command, with the indentation of its block."""
    old = page.read_text().splitlines()
    at = next(i for i, line in enumerate(old) if line.lstrip() == f"$ {step.command}".splitlines()[0])
    at += step.command.count("\n") + 1
    end = next(i for i in range(at, len(old)) if old[i].lstrip().startswith(("$ ", "```")))
    indent = old[at - 1][: len(old[at - 1]) - len(old[at - 1].lstrip())]
    new = [f"{indent}{line}".rstrip() for line in printed]
    page.write_text("\n".join([*old[:at], *new, *old[end:]]) + "\n")


class Run:
    """A folder like a clone of the repository, with ports and a platform of its own, and one shell for all steps."""

    def __init__(self, todo: list[Step], tmp_path: Path) -> None:
        self.folder, self.logs, self.home = tmp_path / "work", tmp_path / "logs", Home(tmp_path / "home")
        self.todo = todo
        for each in (self.folder, self.logs):
            each.mkdir()
        for name in ("examples", "helm"):
            (self.folder / name).symlink_to(ROOT / name)
        gateway, api, server = free_port(), free_port(), free_range(3)
        self.ports = {"8090": gateway, "8091": api, "8080": server, "8000": server, "8443": free_port()}
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("INFERENCE_", "PILOTLIGHT_"))
        }
        self.env = {
            **clean, "PILOTLIGHT_HOME": str(self.home.root), "PILOTLIGHT_GATEWAY_PORT": str(gateway),
            "PILOTLIGHT_API_PORT": str(api), "PILOTLIGHT_SERVICE_PORTS": "0", "PILOTLIGHT_PILOT_LIGHT": "off",
            "INFERENCE_HTTP_PORT": str(server), "INFERENCE_GRPC_PORT": str(server + 1),
            "INFERENCE_METRICS_PORT": str(server + 2),
            "PILOTLIGHT_MICROSERVICE_REGISTRY": str(tmp_path / "registry.json"),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip

    def all_steps(self) -> None:
        text = script(self.todo, self.logs)
        for port, used in self.ports.items():
            text = re.sub(rf":{port}\b", f":{used}", text)
        shell = subprocess.Popen(["bash", "-c", text], cwd=self.folder, env=self.env, start_new_session=True)
        try:
            shell.wait(STEPS_S)
        finally:
            down = [sys.executable, "-m", "platformctl", "down"]
            subprocess.run(down, env=self.env, cwd=self.folder, capture_output=True, timeout=60)
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGTERM)  # servers that the page has left in the background

    def printed(self, i: int) -> str:
        """Output of step i, with the ports and paths of the page."""
        if not (self.logs / f"{i}").exists():
            return "it did not run"
        text = (self.logs / f"{i}").read_text().replace(f"{self.folder}/", "")
        for port, used in self.ports.items():
            text = text.replace(f":{used}", f":{port}")
        return text

    def exit_code(self, i: int) -> str:
        file = self.logs / f"{i}.code"
        return file.read_text().strip() if file.exists() else "none"


@pytest.mark.parametrize("page", pages())
def test_the_steps_of_a_page_work_and_print_what_it_shows(page: Path, tmp_path: Path) -> None:
    run = Run(list(steps(page)), tmp_path)
    run.all_steps()
    eventually(lambda: processes_of(run.home) == [], "the platform and the servers of the page to end")
    for i, step in enumerate(run.todo):
        if not step.command:
            continue
        printed = run.printed(i)
        assert run.exit_code(i) == step.exit_code, f"$ {step.command}\n{printed}"
        if missing := differs(step.shown, printed.splitlines()):
            if os.environ.get("UPDATE_PAGES"):
                update(page, step, printed.splitlines())
            else:
                pytest.fail(f"$ {step.command}\nthe page shows: {missing}\nit prints:\n{printed}")


def test_a_line_that_is_not_printed_would_be_found() -> None:
    printed = ["   0.9s  Ready       100 % to iris-1f3a9c07", "http://127.0.0.1:8090/iris"]
    assert not differs(("1.2s Ready 100 % to iris-00c07abc",), printed)
    assert differs(tuple(reversed(printed)), printed) == printed[0]


def test_every_page_has_commands_in_a_form_that_a_shell_reads() -> None:
    """Also those of blocks that only a cluster, a GPU or a network can run."""
    for page in sorted(FOLDER.glob("*.md")):
        for _, language, text in BLOCK.findall(page.read_text()):
            if language in ("sh", "bash"):
                done = subprocess.run(["bash", "-n"], input=textwrap.dedent(text), capture_output=True, text=True)
                assert not done.stderr, f"{page.name}: {done.stderr}\n{text}"
