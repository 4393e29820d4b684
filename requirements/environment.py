"""Makes a virtual environment that has uv: `python3 requirements/environment.py DIR`, the first step of the Makefile.

Standard library only, and readable by Pythons older than the project's, so that they can be told what is wrong. Some
systems ship Python without ensurepip; there a pip of the system fills the environment instead.
"""

import importlib.util
import os
import subprocess
import sys

LOCK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "uv.txt")
TOO_OLD = "Python {} is too old, 3.11 or newer is needed; choose one with: make PYTHON=/path/to/python3.11"
NO_PIP = (
    "{} has neither ensurepip nor pip, so nothing can be installed with it; install python3-venv"
    " (Debian, Ubuntu: apt install python3-venv), or choose another with: make PYTHON=/path/to/python3.11"
)


def has(module):  # type: (str) -> bool
    return importlib.util.find_spec(module) is not None


def make(directory):  # type: (str) -> None
    """A directory that an interrupted run left behind is taken up again; a link to a Python that is gone, replaced."""
    python = os.path.join(directory, "bin", "python")
    options = [] if has("ensurepip") else ["--without-pip"]
    clear = [] if os.path.exists(python) else ["--clear"]
    call(sys.executable, "-m", "venv", *options, *clear, directory)
    pip = [python, "-m", "pip"] if not options else [sys.executable, "-m", "pip", "--python", python]
    call(*pip, "install", "--quiet", "--disable-pip-version-check", "--require-hashes", "-r", LOCK)


def call(*words):  # type: (str) -> None
    code = subprocess.call(words)  # noqa: S603 - its words are written above
    if code:
        sys.exit("{} failed with exit code {}".format(" ".join(words), code))


def main(directory):  # type: (str) -> None
    if sys.version_info < (3, 11):  # noqa: UP036 - an older one may be what runs this
        sys.exit(TOO_OLD.format(sys.version.split()[0]))
    if not (has("ensurepip") or has("pip")):
        sys.exit(NO_PIP.format(sys.executable))
    make(directory)


if __name__ == "__main__":
    main(sys.argv[1])
