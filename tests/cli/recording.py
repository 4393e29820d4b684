"""The terminal session of the README, recorded from real commands on a platform of its own: `make recording`.

A model is deployed, a slow canary rolls itself back, the service scales to zero and wakes. The picture shows the whole
session first, also without animations, then plays it: lines appear as they appeared, with pauses cut short.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

from tests.embedded import FLOWER, IRIS, ROOT, Platform

DEFAULT_PORT: Final = ("--gateway-port", "8090")  # as users see it
PICTURE: Final = ROOT / "docs" / "images" / "terminal.svg"
COLUMNS: Final = 104
LONGEST_PAUSE_S: Final = 1.0
TYPING_S: Final = 0.8  # before a command's output
HOLD_S: Final = 8.0  # of the whole session
DATA: Final = ("--data", "[5.1, 3.5, 1.4, 0.2]")
CANARY: Final = ("--steps", "20,50,100", "--check", "p99_ms<200", "--interval", "2s")
SLOW_MODEL: Final = """import time

INPUTS = {"x": ("FP32", [-1, 4])}
OUTPUTS = {"y": ("FP32", [-1, 4])}


def predict(x):
    time.sleep(0.3 if x.any() else 0)
    return x
"""


class Line(NamedTuple):
    at: float  # seconds since the first line
    text: str
    kind: str = "out"  # out, cmd or note


class Session:
    """Commands in one folder, and what they print."""

    def __init__(self, platform: Platform, folder: Path) -> None:
        self.lines: list[Line] = []
        self._folder = folder
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self._env = {**platform.env, "PATH": path, "PYTHONUNBUFFERED": "1"}
        self._at = 0.0

    def note(self, text: str) -> None:
        self._add(f"# {text}", LONGEST_PAUSE_S, "note")

    def run(self, *words: str, code: int = 0) -> None:
        """Run `platformctl WORDS`; an exit code that is not 0 becomes a part of the session."""
        self._add(f"$ platformctl {shlex.join(words)}", LONGEST_PAUSE_S, "cmd")
        started, pause = time.monotonic(), TYPING_S
        command = [sys.executable, "-m", "platformctl", *words]
        with subprocess.Popen(
            command, cwd=self._folder, env=self._env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout is not None
            for text in process.stdout:
                self._add(text.rstrip(), pause + min(time.monotonic() - started, LONGEST_PAUSE_S))
                started, pause = time.monotonic(), 0.0
        assert process.returncode == code, "\n".join(line.text for line in self.lines)
        if code:
            self._add("$ echo $?", LONGEST_PAUSE_S, "cmd")
            self._add(str(code), 0.2)

    def _add(self, text: str, pause: float, kind: str = "out") -> None:
        print(text)
        self._at += pause
        self.lines += [Line(self._at, part, kind) for part in wrapped(text)]


def wrapped(text: str) -> Iterator[str]:
    """Cut a line as a terminal does."""
    yield text[:COLUMNS]
    for start in range(COLUMNS, len(text), COLUMNS):
        yield text[start : start + COLUMNS]


@contextmanager
def traffic(platform: Platform) -> Iterator[None]:
    """Some fifteen requests a second."""
    ending = threading.Event()

    def send() -> None:
        while not ending.wait(0.1):
            platform.ask(body=FLOWER)

    threads = [threading.Thread(target=send) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ending.set()
        for thread in threads:
            thread.join()


def record(platform: Platform, folder: Path) -> list[Line]:
    shutil.copy(IRIS, folder / "iris.onnx")
    (folder / "v2").mkdir()
    (folder / "v2" / "model.py").write_text(SLOW_MODEL)
    session = Session(platform, folder)
    session.run("deploy", "./iris.onnx")
    session.run("infer", "iris", *DATA)
    with traffic(platform):
        session.note("clients send requests, and version 2 is slow")
        session.run("canary", "start", "iris", "./v2/model.py", *CANARY, code=5)
    session.note("no requests for a minute")
    platform.wait_phase("Standby", seconds=180)
    session.run("list")
    session.run("infer", "iris", *DATA)
    return session.lines


CHARACTER: Final = (7.8, 18.0)  # pixels
MARGIN: Final = (18.0, 48.0)
STYLE: Final = """
text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#b1bac4;white-space:pre}
.cmd{fill:#f0f6fc;font-weight:600}.prompt{fill:#7ee787}.error{fill:#ff7b72;font-weight:600}.note{fill:#8b949e}
@media (prefers-reduced-motion:reduce){text{animation:none!important}}
"""


def drawn(lines: Sequence[Line]) -> str:
    """Return the picture: a terminal window with one `text` for each line, which appears at its time."""
    width = round(2 * MARGIN[0] + COLUMNS * CHARACTER[0])
    height = round(MARGIN[1] + len(lines) * CHARACTER[1] + 8)
    total = HOLD_S + lines[-1].at + LONGEST_PAUSE_S
    frames, texts = [], []
    for number, line in enumerate(lines):
        share, hold = 100 * (line.at + HOLD_S) / total, 100 * HOLD_S / total
        shown, hidden = f"0%,{hold - 0.01:.2f}%,{share + 0.01:.2f}%,100%", f"{hold:.2f}%,{share:.2f}%"
        frames.append(f"@keyframes k{number}{{{shown}{{opacity:1}}{hidden}{{opacity:0}}}}")
        frames.append(f"#l{number}{{animation:k{number} {total:.1f}s linear infinite}}")
        y = MARGIN[1] + (number + 0.5) * CHARACTER[1]
        length = f' textLength="{len(line.text) * CHARACTER[0]:.1f}"' if line.text.strip() else ""
        place = f'x="{MARGIN[0]:.0f}" y="{y:.0f}"{length}'
        texts.append(f'<text id="l{number}" class="{line.kind}" {place}>{marked(line)}</text>')
    dots = "".join(
        f'<circle cx="{20 + 18 * i}" cy="18" r="6" fill="{colour}"/>'
        for i, colour in enumerate(("#ff5f56", "#ffbd2e", "#27c93f"))
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" xml:space="preserve">',
            f"<style>{STYLE}{''.join(frames)}</style>",
            f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117" stroke="#30363d"/>{dots}',
            *texts,
            "</svg>\n",
        ]
    )


def marked(line: Line) -> str:
    """Return the text of a line with its prompt or `error:` in a colour."""
    word = line.text.partition(" ")[0]
    if word not in ("$", "error:"):
        return escape(line.text)
    return f'<tspan class="{"prompt" if word == "$" else "error"}">{word}</tspan>{escape(line.text[len(word) :])}'


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Platform(folder / "home", {"PILOTLIGHT_PILOT_LIGHT": "on"}, DEFAULT_PORT) as platform:
            PICTURE.write_text(drawn(record(platform, folder)))


if __name__ == "__main__":
    main()
