"""Execution of the programs of targets: docker, sbatch, ssh, lep, brev.

Never through a shell. The last line of a failed program becomes the error message, with values of secrets redacted,
since a daemon may repeat its input.
"""

import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from pilotlight.errors import PlatformError, TimedOut
from pilotlight.targets.error_from_log import USAGE_HINT
from pilotlight.targets.secret_redaction import redact

TIMEOUT_S: Final = 60.0
# The end of "docker: Error response from daemon: …" matters most.
_LONGEST: Final = 500


class CompletedCommand(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def summary(self) -> str:
        """Last line of its output but for hints at its help, or the exit code."""
        lines = [line.strip() for line in (self.err or self.out).splitlines()]
        lines = [line for line in lines if line and not USAGE_HINT.match(line)]
        return (lines[-1] if lines else f"exit code {self.code}")[-_LONGEST:]


class Programs:
    """Runs programs in one environment. `names`: secrets in it beyond the well-known ones."""

    def __init__(self, environ: Mapping[str, str], names: Iterable[str] = ()) -> None:
        self.environ = dict(environ)
        self._names = tuple(names)

    def run(self, words: Sequence[str], stdin: str = "", timeout_s: float = TIMEOUT_S) -> CompletedCommand:
        """Run a program. Raise only where it cannot be run or times out."""
        try:
            done = subprocess.run(  # noqa: S603 - arguments, never a shell line
                list(words), input=stdin, env=self.environ, capture_output=True, text=True, errors="replace",
                timeout=timeout_s, check=False,
            )  # fmt: skip
        except (FileNotFoundError, PermissionError):
            raise _not_found(words[0]) from None
        except subprocess.TimeoutExpired:
            raise TimedOut(f"{shown(words)} did not answer within {timeout_s:g} s") from None
        out, err = (redact(text, self.environ, self._names) for text in (done.stdout, done.stderr))
        return CompletedCommand(done.returncode, out, err)

    def run_checked(self, words: Sequence[str], stdin: str = "", timeout_s: float = TIMEOUT_S, hint: str = "") -> str:
        """Run a program and return its output. Raise where it failed."""
        done = self.run(words, stdin, timeout_s)
        if done.code:
            raise PlatformError(f"{shown(words)} failed: {done.summary}", hint)
        return done.out

    def lines(self, words: Sequence[str], stdin: str = "") -> Iterator[str]:
        """Run a program and yield its lines as they come; it is ended when the iterator is closed."""
        try:
            process = subprocess.Popen(  # noqa: S603 - arguments, never a shell line
                list(words), env=self.environ, text=True, errors="replace",
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
        except (FileNotFoundError, PermissionError):
            raise _not_found(words[0]) from None
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(stdin)
                process.stdin.close()
                for line in process.stdout:
                    yield redact(line.rstrip("\n"), self.environ, self._names)
            finally:
                process.terminate()


def _not_found(program: str) -> PlatformError:
    return PlatformError(f"{program} is not on the PATH", f"install {program}, or add it to PATH")


def shown(words: Sequence[str]) -> str:
    """Return program and verb, for error messages."""
    return " ".join(words[:2]) if len(words) > 1 and not words[1].startswith("-") else words[0]
