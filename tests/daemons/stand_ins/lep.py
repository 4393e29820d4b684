"""Stands in for `lep` and the workspace behind it: the documented verbs and flags, and what they print and exit with.

An endpoint's container is a process of this machine. It has no network of its own, so that its port comes by
INFERENCE_PORT instead of --container-port. What it stands for and what it leaves out: docs/platforms.md.
"""

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

STATE = Path(os.environ["LEP_STAND_IN"])
SECRETS: dict[str, str] = json.loads((STATE / "secrets.json").read_text())
KEPT = ("PATH", "LANG", "PILOTLIGHT_PYTHON")
PORTS = range(19100, 19200)  # below those that the kernel gives to whoever asks for any: nothing listens there yet


def main() -> None:
    arguments = parser().parse_args()
    arguments.verb(arguments)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="lep", allow_abbrev=False)
    groups = top.add_subparsers(required=True)
    endpoint = groups.add_parser("endpoint").add_subparsers(required=True)
    create_parser = endpoint.add_parser("create", allow_abbrev=False)
    for flag in ("--name", "--container-image", "--container-command"):
        create_parser.add_argument(flag, required=True)
    create_parser.add_argument("--container-port", type=int, default=40000)
    create_parser.add_argument("--resource-shape", default="cpu.small")
    create_parser.add_argument("--replicas-static", type=int)
    for flag in ("--env", "--secret", "--node-group", "--image-pull-secrets"):
        create_parser.add_argument(flag, action="append", default=[])
    create_parser.add_argument("--allow-unauthenticated-access", action="store_true")
    create_parser.set_defaults(verb=create)
    for name, verb in (("get", get), ("remove", remove)):
        one = endpoint.add_parser(name)
        one.add_argument("--name", required=True)
        one.set_defaults(verb=verb)
    secret = groups.add_parser("secret").add_subparsers(required=True)
    secret.add_parser("list").set_defaults(verb=list_secrets)
    log = groups.add_parser("log").add_subparsers(required=True).add_parser("get")
    log.add_argument("--endpoint", required=True)
    log.add_argument("--limit", type=int, default=5000)
    log.add_argument("--without-timestamp", action="store_true")
    log.set_defaults(verb=show_log)
    return top


def create(told: argparse.Namespace) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,35}", told.name):
        say("Error encountered while processing endpoint configs: the name is not valid.", 1)
    variables = dict(pair.split("=", 1) for pair in told.env)
    references = dict(pair.split("=", 1) if "=" in pair else (pair, pair) for pair in told.secret)
    if missing := [name for name in references.values() if name not in SECRETS]:
        say(f"400 Bad Request: secret {missing[0]} does not exist", 1)
    port = next(port for port in PORTS if port not in given() and can_bind(port))
    secrets = {name: SECRETS[reference] for name, reference in references.items()}
    moved = {"INFERENCE_PORT": str(port), "INFERENCE_HOST": "127.0.0.1"}
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    with open(STATE / f"{told.name}.log", "w") as log:
        process = subprocess.Popen(
            ["/bin/bash", "-c", told.container_command], env={**kept, **variables, **secrets, **moved},
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    envs = [{"name": name, "value": value} for name, value in variables.items()]
    envs += [{"name": name, "value_from": {"secret_name_ref": value}} for name, value in references.items()]
    container = {"image": told.container_image, "command": ["/bin/bash", "-c", told.container_command]}
    spec = {"container": container, "envs": envs, "resource_requirement": {"resource_shape": told.resource_shape}}
    note = {"pid": process.pid, "port": port, "spec": spec, "created_at": int(time.time() * 1000)}
    (STATE / f"{told.name}.json").write_text(json.dumps(note))
    say(f"🎉 Endpoint Created Successfully!\nName: {told.name}\nUse `lep endpoint status -n {told.name}`")


def given() -> set[int]:
    """To endpoints that may not listen yet."""
    return {json.loads(note.read_text())["port"] for note in STATE.glob("*.json") if note.name != "secrets.json"}


def can_bind(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def get(told: argparse.Namespace) -> None:
    note = read(told.name)
    address = f"http://127.0.0.1:{note['port']}"
    endpoint = {"internal_endpoint": address, "external_endpoint": address}
    document = {
        "metadata": {"id": told.name, "name": told.name, "created_at": note["created_at"]},
        "spec": note["spec"],
        "status": {"state": state(note), "endpoint": endpoint},
    }
    say(json.dumps(document, indent=2))


def remove(told: argparse.Namespace) -> None:
    note = read(told.name)
    if running(note["pid"]):
        os.killpg(note["pid"], signal.SIGTERM)
    (STATE / f"{told.name}.json").unlink()
    say(f"Endpoint {told.name} deleted successfully.")


def list_secrets(told: argparse.Namespace) -> None:
    say("\n".join(["Secrets", "│ Name │ Tags │", *(f"│ {name} │  │" for name in SECRETS)]))


def show_log(told: argparse.Namespace) -> None:
    read(told.endpoint)
    say("\n".join((STATE / f"{told.endpoint}.log").read_text().splitlines()[-told.limit :]))


def state(note: dict[str, Any]) -> str:
    if not running(note["pid"]):
        return "Error"
    try:
        socket.create_connection(("127.0.0.1", note["port"]), 1).close()
    except OSError:
        return "Starting"
    return "Ready"


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def read(name: str) -> dict[str, Any]:
    try:
        return json.loads((STATE / f"{name}.json").read_text())
    except OSError:
        say(f'404 Not Found:{{"code":"NotFound","message":"deployment {name} not found"}}', 1)
        raise AssertionError from None


def say(text: str, code: int = 0) -> None:
    """Wrapped at the width of the terminal, which is 80 where there is none: so does rich, within words too."""
    width = int(os.environ.get("COLUMNS", "80"))
    for line in text.splitlines():
        print(*(line[at : at + width] for at in range(0, max(1, len(line)), width)), sep="\n")
    if code:
        sys.exit(code)


main()
