"""A `docker` whose containers are processes of this machine, on its network: what a document runs without a daemon.

The image of a container is this machine's Python and its files; mounts are none but the folder of sockets.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOCKETS = "/run/pilotlight"


def installed(folder: Path) -> dict[str, str]:
    """The variables by which it is found; `folder` has a file for each container."""
    programs = folder / "programs"
    programs.mkdir(parents=True)
    program = programs / "docker"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} "$@"\n')
    program.chmod(0o755)
    return {"PATH": f"{programs}:{os.environ['PATH']}", "DOCKER_STAND_IN": str(folder)}


def container(name: str) -> Path:
    return Path(os.environ["DOCKER_STAND_IN"]) / f"{name}.json"


def run(words: list[str]) -> int:
    at = next(index for index, word in enumerate(words) if not word.startswith("--"))
    options = [word[2:].partition("=")[::2] for word in words[:at]]
    (name,) = [value for key, value in options if key == "name"]
    labels = dict(value.partition("=")[::2] for key, value in options if key == "label")
    given = [value.partition("=") for key, value in options if key == "env"]
    env = {variable: value if sign else os.environ[variable] for variable, sign, value in given}
    for key, value in options:
        mount = dict(part.partition("=")[::2] for part in value.split(",")) if key == "mount" else {}
        if mount.get("target") == SOCKETS:
            env = {variable: each.replace(SOCKETS, mount["source"]) for variable, each in env.items()}
    entry = [sys.executable for key, value in options if key == "entrypoint"]
    kept = {variable: os.environ[variable] for variable in ("PATH", "HOME") if variable in os.environ}
    process = subprocess.Popen([*entry, *words[at + 1 :]], env={**kept, **env}, cwd=ROOT)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    state = {
        "replica": labels["dev.pilotlight.replica"],
        "env": env,
        "pid": process.pid,
        "sockets": SOCKETS in str(words),
    }
    container(name).write_text(json.dumps(state))
    (cidfile,) = [value for key, value in options if key == "cidfile"]
    Path(cidfile).write_text(name)
    code = process.wait()
    container(name).write_text(json.dumps({**state, "code": code}))
    return code if code >= 0 else 128 - code


def inspect(name: str) -> int:
    if not container(name).exists():
        print(f"No such container: {name}", file=sys.stderr)
        return 1
    known = json.loads(container(name).read_text())
    running = "code" not in known
    state = {"Pid": known["pid"] if running else 0, "Running": running, "ExitCode": known.get("code", 0)}
    mounts = [{"Destination": SOCKETS}] if known["sockets"] else []
    env = [f"{key}={value}" for key, value in known["env"].items()]
    described = {"State": state, "Config": {"Env": env}, "HostConfig": {"NetworkMode": "host"}, "Mounts": mounts}
    print(json.dumps([{**described, "NetworkSettings": {"Ports": {}}}]))
    return 0


def ps(words: list[str]) -> int:
    wanted = [
        word.rpartition("replica=")[2] for word in words if word.startswith("--filter=label=dev.pilotlight.replica=")
    ]
    for file in container("x").parent.glob("*.json"):
        known = json.loads(file.read_text())
        if wanted in ([], [known["replica"]]) and ("--all" in words or "code" not in known):
            print(file.stem, known["replica"])
    return 0


def main() -> int:
    verb, *words = sys.argv[1:]
    if verb == "run":
        return run(words)
    if verb == "inspect":
        return inspect(words[-1])
    if verb == "ps":
        return ps(words)
    if verb == "kill":
        os.kill(json.loads(container(words[-1]).read_text())["pid"], signal.SIGKILL)
    elif verb == "rm":
        container(words[-1]).unlink(missing_ok=True)
    else:
        print({"image": "sha256:1"}.get(verb, '{"ServerVersion": "1", "Version": "1", "NCPU": 2}'))
    return 0


if __name__ == "__main__":
    sys.exit(main())
