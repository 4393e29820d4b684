"""A Docker whose every answer a test decides: stands in where a real daemon would be too quick or too well."""

import os
from pathlib import Path

# A container is a file of its name, with the id of its replica. `run` waits for the gate, as for an image, and is then
# attached, or fails where there is a file `broken`; while the daemon is away, nothing succeeds.
DOCKER = """#!/bin/sh
cd "$DOCKER_STAND_IN" || exit 9
if [ -e away ]; then
    echo "error during connect" >&2
    exit 1
fi
for word; do
    name=$word
    case "$word" in
    --cidfile=*) id_file=${word#--cidfile=} ;;
    --label=dev.pilotlight.replica=*) replica=${word#*replica=} ;;
    --filter=label=dev.pilotlight.replica=*) only=${word#*replica=} ;;
    esac
done
case "$1" in
version) echo '{"Version": "1"}' ;;
info) echo '{"ServerVersion": "1"}' ;;
image) echo sha256:1 ;;
network) [ "$name" != nosuch ] || exit 1 ;;
inspect)
    state='{"Status": "running", "Running": true, "ExitCode": 0}'
    case "$*" in *--format=*) echo "$state" ;; *) echo "[{\\"State\\": $state}]" ;; esac ;;
run)
    for word; do case "$word" in --name=*) name=${word#--name=} ;; esac; done
    echo "$replica" > "made-$name"
    until [ -e gate ] || [ -e broken ]; do sleep 0.05; done
    if [ -e broken ]; then rm "made-$name"; echo "docker: no such device" >&2; exit 125; fi
    echo "$name" > "$id_file"
    while :; do sleep 0.05; done ;;
kill) echo "No such container" >&2; exit 1 ;;
ps)
    for file in made-*; do
        if [ -e "$file" ] && read -r id < "$file" && [ "${only:-$id}" = "$id" ]; then echo "${file#made-} $id"; fi
    done ;;
rm) rm -f "made-$name" ;;
esac
"""


def installed(folder: Path) -> dict[str, str]:
    """The variables by which it is found; `gate`, `away` and `broken` are files of the folder."""
    programs = folder / "programs"
    programs.mkdir()
    program = programs / "docker"
    program.write_text(DOCKER)
    program.chmod(0o755)
    return {"PATH": f"{programs}:{os.environ['PATH']}", "DOCKER_STAND_IN": str(folder)}


def containers(folder: Path) -> set[str]:
    return {path.name.removeprefix("made-") for path in folder.glob("made-*")}
