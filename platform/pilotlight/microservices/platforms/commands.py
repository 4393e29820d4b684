"""Execution of platform CLIs: docker, sbatch, ssh, lep, brev.

Never through a shell. The last line of a failed program becomes the error message, with values of secrets redacted,
since a daemon may repeat its input.
"""

import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from pilotlight.errors import PlatformError, TimedOut, UsageError
from pilotlight.microservices.registry.records import Job
from pilotlight.microservices.registry.secret_references import redact

TIMEOUT_S: Final = 60.0
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{1,62}")
_PLAIN: Final = re.compile(r"[A-Za-z0-9._/][A-Za-z0-9._/:@+#-]*")
_OPTION: Final = re.compile(r"(?:[A-Za-z0-9_./@][A-Za-z0-9_.:/,@=+ -]*)?")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# The end of "docker: Error response from daemon: …" matters most.
_LONGEST: Final = 500


class CompletedCommand(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def summary(self) -> str:
        """Last line of its output, or the exit code."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        return (lines[-1] if lines else f"exit code {self.code}")[-_LONGEST:]


class Programs:
    """Runs programs in one environment. `names`: secrets in it beyond the well-known ones."""

    def __init__(self, environ: Mapping[str, str], names: Iterable[str] = ()) -> None:
        self.environ = dict(environ)
        self._names = tuple(names)

    def redacting(self, job: Job) -> "Programs":
        """Return a runner that redacts the job's secrets too."""
        return Programs(self.environ, job.secrets)

    def run(self, words: Sequence[str], stdin: str = "", timeout_s: float = TIMEOUT_S) -> CompletedCommand:
        """Run a program. Raise only where it cannot be run or times out."""
        try:
            done = subprocess.run(  # noqa: S603 - arguments, never a shell line
                list(words), input=stdin, env=self.environ, capture_output=True, text=True, errors="replace",
                timeout=timeout_s, check=False,
            )  # fmt: skip
        except (FileNotFoundError, PermissionError):
            raise PlatformError(
                f"{words[0]} is not on the PATH", hint=f"install {words[0]}, or add it to PATH"
            ) from None
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


def shown(words: Sequence[str]) -> str:
    """Return program and verb, for error messages."""
    return " ".join(words[:2]) if len(words) > 1 and not words[1].startswith("-") else words[0]


def validate_job(job: Job) -> Job:
    """Return the job. Raise for values that a program or a shell could misinterpret."""
    for name in (*job.env, *job.secrets):
        if not _NAME.fullmatch(name):
            raise UsageError(f"env: {name!r} is no name of a variable, must be letters, digits and _")
    if wrong := [name for name, value in job.env.items() if "\0" in value]:
        raise UsageError(f"env.{wrong[0]} holds a zero byte, which no environment can carry")
    if "\0" in job.command:
        raise UsageError("command holds a zero byte, which no program can be given")
    if not _ID.fullmatch(job.id):
        raise UsageError(f"job id = {job.id!r}, must be letters, digits and dashes, as a uuid4 is")
    if not _PLAIN.fullmatch(job.image):
        raise UsageError(f"image = {job.image!r}, must be a name such as nvcr.io/nvidia/tao:6, without blanks")
    for name, value in job.options.items():
        if not _OPTION.fullmatch(value):
            raise UsageError(f"{name} = {value!r}, must be letters, digits and any of _ . : / , @ = + -")
    return job


def split_list(value: str) -> list[str]:
    """Split an option with several values."""
    return [part for part in value.split(",") if part]


def set_secrets(job: Job, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the job's secrets that are set in the environment."""
    return tuple(name for name in job.secrets if environ.get(name))


def exports(env: Mapping[str, str]) -> str:
    """Return export lines of a shell script, quoted."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())
