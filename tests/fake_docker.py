"""A Docker whose every answer a test decides: stands in where a real daemon would be too quick or too well."""

import os
from pathlib import Path

# A container is a file of its name. `run` waits for the gate; while the daemon is away, nothing else succeeds.
DOCKER = """#!/bin/sh
cd "$DOCKER_STAND_IN" || exit 9
for name; do :; done
case "$1" in
version) echo '{"Version": "1"}' ;;
image) echo sha256:1 ;;
inspect)
    if [ -e away ]; then echo "error during connect" >&2; exit 1; fi
    echo '{"Status": "running", "Running": true, "ExitCode": 0}' ;;
run)
    while [ $# -gt 0 ]; do case "$1" in --name) name=$2 ;; --name=*) name=${1#--name=} ;; esac; shift; done
    : > "made-$name"
    until [ -e gate ] || [ -e away ]; do sleep 0.05; done
    if [ -e away ]; then echo "error during connect" >&2; exit 1; fi ;;
stop) if [ -e away ]; then echo "error during connect" >&2; exit 1; fi ;;
rm)
    if [ -e away ]; then echo "error during connect" >&2; exit 1; fi
    rm -f "made-$name" ;;
esac
"""


def installed(folder: Path) -> dict[str, str]:
    """The variables by which it is found; `gate` and `away` are files of the folder."""
    programs = folder / "programs"
    programs.mkdir()
    program = programs / "docker"
    program.write_text(DOCKER)
    program.chmod(0o755)
    return {"PATH": f"{programs}:{os.environ['PATH']}", "DOCKER_STAND_IN": str(folder)}


def containers(folder: Path) -> set[str]:
    return {path.name.removeprefix("made-") for path in folder.glob("made-*")}
