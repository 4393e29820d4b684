"""Stands in for `docker` on an instance: a container is a process of this machine, with the port that it publishes.

The verbs and flags that are used over ssh, with what docker prints and exits with. `--restart` is kept, not heeded.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

STATE = Path(os.environ["DOCKER_HOST"].removeprefix("unix://"))  # the one variable of docker's that travels


def main() -> None:
    verb, *words = sys.argv[1:]
    if verb == "image":
        sys.exit(0 if (STATE / "pulled").exists() else fail("Error: No such image"))
    verbs = {"run": run, "inspect": inspect, "stop": stop, "rm": rm, "logs": logs, "pull": pull, "version": version}
    verbs[verb](words)


def fail(text: str) -> int:
    print(text, file=sys.stderr)
    return 1


def pull(words: list[str]) -> None:
    if "missing" in words[-1]:
        sys.exit(fail(f"Error response from daemon: manifest for {words[-1]} not found"))
    (STATE / "pulled").touch()


def version(_: list[str]) -> None:
    print('{"Version": "28.0"}')


def run(words: list[str]) -> None:
    flags = [word for word in words if word.startswith("--")]
    values: dict[str, list[str]] = {}
    for flag in flags:
        name, _, value = flag[2:].partition("=")
        values.setdefault(name, []).append(value)
    image, *command = words[len(flags) :]
    (name,), (published,) = values["name"], values["publish"]
    if (STATE / f"{name}.json").exists():
        sys.exit(fail(f'docker: Error response from daemon: Conflict. The container name "/{name}" is already in use'))
    env = dict(pair.partition("=")[::2] if "=" in pair else (pair, os.environ[pair]) for pair in values.get("env", ()))
    host, port, _ = published.split(":")
    kept = {"PATH": os.environ["PATH"]}
    own = {
        "INFERENCE_HTTP_PORT": port,
        "INFERENCE_HOST": host,
        "INFERENCE_GRPC_PORT": "0",
        "INFERENCE_METRICS_PORT": "0",
    }
    entry = values.get("entrypoint", [""])[0]
    program = [entry, *command] if entry else [sys.executable, "-m", "pilotlight_predictor", *command]
    with open(STATE / f"{name}.log", "w") as log:
        process = subprocess.Popen(
            program, env={**kept, **env, **own}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    if (STATE / "refuses").exists():  # such a container exists, and does not run
        os.killpg(process.pid, signal.SIGKILL)
    labels = dict(label.partition("=")[::2] for label in values.get("label", ()))
    note = {"pid": process.pid, "image": image, "labels": labels, "words": words}
    (STATE / f"{name}.json").write_text(json.dumps(note))
    if (STATE / "refuses").exists():
        sys.exit(fail(f"docker: Error response from daemon: {(STATE / 'refuses').read_text()}"))
    print("0123abcd")


def read(name: str) -> dict[str, Any]:
    try:
        return json.loads((STATE / f"{name}.json").read_text())
    except OSError:
        sys.exit(fail(f"Error response from daemon: No such container: {name}"))


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def inspect(words: list[str]) -> None:
    note = read(words[-1])
    if "Labels" in words[-2]:
        print(note["labels"].get("dev.pilotlight.generation", ""))
        return
    alive = running(note["pid"])
    code = {} if alive else {"ExitCode": 1}
    print(json.dumps({"Status": "running" if alive else "exited", "Running": alive, **code}))


def stop(words: list[str]) -> None:
    pid = read(words[-1])["pid"]
    if running(pid):
        os.killpg(pid, signal.SIGTERM)
    deadline = time.monotonic() + 20
    while running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)


def rm(words: list[str]) -> None:
    stop(words)
    (STATE / f"{words[-1]}.json").unlink()


def logs(words: list[str]) -> None:
    note, follow = read(words[-1]), "--follow" in words
    tail = next(word.partition("=")[2] for word in words if word.startswith("--tail="))
    with open(STATE / f"{words[-1]}.log") as log:
        lines = log.readlines()
        print("".join(lines if tail == "all" else lines[-int(tail) :]), end="", flush=True)
        while follow and running(note["pid"]):
            print(log.readline(), end="", flush=True)
            time.sleep(0.05)


main()
