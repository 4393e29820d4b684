"""Runs the programs that platforms are asked through: docker, sbatch, ssh, lep, brev.

Never through a shell of ours. What a program says when it fails becomes one sentence, and the values of secrets are
taken out of it: a daemon may repeat what it was given.
"""

import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from pilotlight.errors import PlatformError, TimedOut, UsageError
from pilotlight.microservices.model import Job
from pilotlight.microservices.secrets import redacted

TIMEOUT_S: Final = 60.0
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{1,62}")
_PLAIN: Final = re.compile(r"[A-Za-z0-9._/][A-Za-z0-9._/:@+#-]*")
_OPTION: Final = re.compile(r"(?:[A-Za-z0-9_./@][A-Za-z0-9_.:/,@=+ -]*)?")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What follows the last colon of "docker: Error response from daemon: …" matters most; a line is enough of it.
_LONGEST: Final = 500


class Finished(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """Its last words, on one line."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        return (lines[-1] if lines else f"exit code {self.code}")[-_LONGEST:]


class Programs:
    """Runs programs in one environment, which may hold secrets: `names` are those beyond the usual ones."""

    def __init__(self, environ: Mapping[str, str], names: Iterable[str] = ()) -> None:
        self.environ = dict(environ)
        self._names = tuple(names)

    def knowing(self, job: Job) -> "Programs":
        """The same, with the job's secrets kept out of every answer."""
        return Programs(self.environ, job.secrets)

    def ask(self, words: Sequence[str], stdin: str = "", timeout_s: float = TIMEOUT_S) -> Finished:
        """Whatever it answers. Raises only where it cannot be run or does not end."""
        try:
            done = subprocess.run(  # noqa: S603 - words, never a line for a shell
                list(words), input=stdin, env=self.environ, capture_output=True, text=True, errors="replace",
                timeout=timeout_s, check=False,
            )  # fmt: skip
        except (FileNotFoundError, PermissionError):
            raise PlatformError(
                f"{words[0]} is not on the PATH", hint=f"install {words[0]}, or add it to PATH"
            ) from None
        except subprocess.TimeoutExpired:
            raise TimedOut(f"{shown(words)} did not answer within {timeout_s:g} s") from None
        out, err = (redacted(text, self.environ, self._names) for text in (done.stdout, done.stderr))
        return Finished(done.returncode, out, err)

    def tell(self, words: Sequence[str], stdin: str = "", timeout_s: float = TIMEOUT_S, hint: str = "") -> str:
        """What it printed. Raises where it failed, with its last words."""
        done = self.ask(words, stdin, timeout_s)
        if done.code:
            raise PlatformError(f"{shown(words)} failed: {done.said}", hint)
        return done.out


def shown(words: Sequence[str]) -> str:
    """A call as errors name it: program and verb, not the long rest."""
    return " ".join(words[:2]) if len(words) > 1 and not words[1].startswith("-") else words[0]


def checked(job: Job) -> Job:
    """The job, nothing of which a program or a shell could take for something else."""
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


def listed(value: str) -> list[str]:
    """The parts of an option that takes several."""
    return [part for part in value.split(",") if part]


def set_secrets(job: Job, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Those of the job's secrets that have a value here; the rest is not needed, or the model will say so."""
    return tuple(name for name in job.secrets if environ.get(name))


def exports(env: Mapping[str, str]) -> str:
    """Lines of a shell script. Each value is one word, whatever it holds."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())
