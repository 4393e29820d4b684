"""On a terminal a person is asked: for sampling fields in one round, for a choice, before the latest is stopped."""

import json
import os
import pty
import select
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest
from tests.platform.microservices.jobs.conftest import Ctl

PATIENCE_S = 90.0


class Terminal:
    """One call of a verb whose input and messages are a terminal; `type` answers what `expect` has seen."""

    def __init__(self, ctl: Ctl, *words: str) -> None:
        self._ours, theirs = pty.openpty()
        self._process = subprocess.Popen(
            ctl.words(*words), env={**ctl.environ, "TERM": "dumb", "COLUMNS": "200"}, cwd=ctl.folder,
            stdin=theirs, stderr=theirs, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self.seen = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()
        os.close(self._ours)

    def expect(self, text: str) -> Self:
        """Waits until it is shown, after what was expected before."""
        end = time.monotonic() + PATIENCE_S
        while text not in self.seen:
            assert time.monotonic() < end, f"{text!r} is not in {self.seen!r}"
            if not self._read(1.0):
                assert self._process.poll() is None, f"{text!r} is not in {self.seen!r}"
        self.before, _, self.seen = self.seen.partition(text)
        return self

    def type(self, line: str = "") -> Self:
        os.write(self._ours, f"{line}\n".encode())
        return self

    def end(self) -> tuple[int, str]:
        """Exit code and what went to stdout."""
        out, _ = self._process.communicate(timeout=PATIENCE_S)
        while self._read(0.0):
            continue
        return self._process.returncode, out

    def _read(self, seconds: float) -> bool:
        try:
            if select.select([self._ours], [], [], seconds)[0]:
                self.seen += os.read(self._ours, 65536).decode(errors="replace")
                return True
        except OSError:  # the other side has closed
            return False
        return False


Open = Callable[..., Terminal]


@pytest.fixture
def terminal(ctl: Ctl) -> Iterator[Open]:
    opened: list[Terminal] = []

    def made(*words: str) -> Terminal:
        opened.append(Terminal(ctl, *words))
        return opened[-1]

    yield made
    for each in opened:
        each.__exit__()


def test_all_fields_are_asked_for_in_one_round_and_enter_keeps_a_default(
    ctl: Ctl, model: Path, terminal: Open
) -> None:  # fmt: skip
    job_id = ctl.start(model, "--ready")["job_id"]
    typed = terminal("infer", "--top-p", "0.25")
    typed.expect(f"Sending to job_id={job_id}").expect("prompt:").type("hello").expect("Enter keeps the default")
    typed.expect("max_tokens").expect("integer, default 512").expect("temperature [number, default 1.0]:")
    assert "top_p" not in typed.before
    typed.type("much").expect("temperature = much, must be a number").expect("temperature [").type("1.75")
    typed.expect("max_tokens [integer, default 512]:").type().expect("seed [").type()
    code, out = typed.end()
    assert code == 0, typed.seen
    assert '"asked": "hello"' in out
    assert '"temperature": 1.75' in out
    assert '"top_p": 0.25' in out
    assert '"max_tokens": 512' in out
    assert '"seed": null' in out or "seed" not in out


def test_what_is_missing_is_said_before_anything_is_asked(ctl: Ctl, terminal: Open) -> None:
    entry = {"platform": "docker", "network_arch": "cosmos-rl", "host_url": "http://localhost:1", "started_at": "2026"}
    path = Path(ctl.environ["PILOTLIGHT_MICROSERVICE_REGISTRY"])
    path.touch(0o600)
    path.write_text(json.dumps({"a": entry, "latest": "a"}))
    typed = terminal("infer")
    assert typed.expect("must have an image_url or a video_url").end()[0] == 2
    assert "prompt" not in typed.before
    assert "Sending" not in typed.before


def test_a_person_chooses_among_several_and_confirms_what_is_stopped(ctl: Ctl, model: Path, terminal: Open) -> None:
    first, second = ctl.start(model), ctl.start(model)
    chosen = terminal("status")
    chosen.expect(first["job_id"]).expect(second["job_id"]).expect("job id:").type(first["job_id"])
    code, out = chosen.end()
    assert code == 0
    assert first["job_id"] in out
    refused = terminal("stop").expect(second["job_id"]).expect("[y/N]:").type("n")
    assert refused.end()[0] == 130
    assert second["job_id"] in ctl.registry
    stopped = terminal("stop").expect("[y/N]:").type("y")
    assert stopped.end() == (0, f"stopped {second['job_id']}\n")
    assert set(ctl.registry) == {first["job_id"], "latest"}


def test_what_a_platform_needs_is_asked_for(ctl: Ctl, terminal: Open) -> None:
    """Slurm is not there, so nothing starts: what was typed has been taken all the same."""
    asked = terminal("start", "--platform", "slurm")
    asked.expect("network_arch").type("pilotlight").expect("model_path").type("/").expect("partition (").type("gpu")
    asked.expect("account (").type("team").expect("error:")
    assert asked.end()[0] != 0
    assert ctl.registry == {}
