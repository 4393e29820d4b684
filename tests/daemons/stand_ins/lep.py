"""Stands in for `lep` and the workspace behind it: the documented verbs and flags, and what they print and exit with.

An endpoint's container is a process of this machine. It has no network of its own, so that its port comes by
INFERENCE_PORT instead of --container-port. What it stands for and what it leaves out: docs/how-to/targets.md.
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
    create_parser.add_argument("--name", required=True)
    create_parser.add_argument("--file")
    create_parser.add_argument("--container-command")
    create_parser.add_argument("--container-port", type=int)
    for flag in ("--env", "--secret", "--node-group", "--image-pull-secrets"):
        create_parser.add_argument(flag, action="append", default=[])
    for flag in ("--allow-unauthenticated-access", "--rerun"):
        create_parser.add_argument(flag, action="store_true")
    create_parser.set_defaults(verb=create)
    update_parser = endpoint.add_parser("update", allow_abbrev=False)
    update_parser.add_argument("--name", required=True)
    update_parser.set_defaults(verb=update)
    for one in (create_parser, update_parser):
        for flag in ("--container-image", "--resource-shape", "--autoscale-qpm"):
            one.add_argument(flag)
        one.add_argument("--replicas-static", type=int)
    for name, verb in (("get", get), ("remove", remove), ("events", events), ("log", follow_log)):
        one = endpoint.add_parser(name)
        one.add_argument("--name", required=True)
        one.set_defaults(verb=verb)
    endpoint.add_parser("list").set_defaults(verb=list_endpoints)
    workspace = groups.add_parser("workspace").add_subparsers(required=True)
    workspace.add_parser("id").set_defaults(verb=lambda _: say("stand-in"))
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
    if (STATE / f"{told.name}.json").exists():
        if not told.rerun:
            say(f"Endpoint {told.name} already exists. Use `lep endpoint update -n {told.name}`, or add `--rerun`.", 1)
        remove(told)
    spec: dict[str, Any] = json.loads(Path(told.file).read_text()) if told.file else {}
    if told.container_image:
        spec["container"] = {"image": told.container_image}
        if told.container_command:
            spec["container"]["command"] = ["/bin/bash", "-c", told.container_command]
        spec["container"]["ports"] = [{"container_port": told.container_port or 40000}]
    if told.env or told.secret or not told.file:
        pairs = [pair.split("=", 1) if "=" in pair else (pair, pair) for pair in told.secret]
        envs = [{"name": name, "value": value} for name, value in (pair.split("=", 1) for pair in told.env)]
        spec["envs"] = envs + [{"name": name, "value_from": {"secret_name_ref": value}} for name, value in pairs]
    spec["resource_requirement"] = {"resource_shape": told.resource_shape or "cpu.small"}
    note = {"port": next(port for port in PORTS if port not in given() and can_bind(port)), "spec": spec}
    note |= {"created_at": int(time.time() * 1000), "events": []}
    scale(note, told)
    launch(told.name, note)
    say(f"🎉 Endpoint Created Successfully!\nName: {told.name}\nUse `lep endpoint status -n {told.name}`")


def scale(note: dict[str, Any], told: argparse.Namespace) -> None:
    """Without either flag an endpoint falls to zero after an hour; this one never does."""
    least, most = told.replicas_static or 1, told.replicas_static or 1
    if told.autoscale_qpm:
        least, most, threshold = told.autoscale_qpm.split(",")
        note["spec"]["auto_scaler"] = {"target_throughput": {"qpm": float(threshold)}}
    note["spec"]["resource_requirement"] |= {"min_replicas": int(least), "max_replicas": int(most)}


def launch(name: str, note: dict[str, Any]) -> None:
    values = {each["name"]: each["value"] for each in note["spec"]["envs"] if "value" in each}
    for each in note["spec"]["envs"]:
        if "value_from" in each:
            reference = each["value_from"]["secret_name_ref"]
            if reference not in SECRETS:
                say(f"400 Bad Request: secret {reference} does not exist", 1)
            values[each["name"]] = SECRETS[reference]
    moved = {"INFERENCE_PORT": str(note["port"]), "INFERENCE_HOST": "127.0.0.1"}
    if "INFERENCE_HTTP_PORT" in values:  # another name of the same setting
        moved = {**dict.fromkeys(("INFERENCE_GRPC_PORT", "INFERENCE_METRICS_PORT"), "0"), "INFERENCE_HTTP_PORT":
            moved["INFERENCE_PORT"], "INFERENCE_HOST": "127.0.0.1"}  # fmt: skip
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    command = note["spec"]["container"].get("command") or [sys.executable, "-m", "pilotlight_predictor"]
    with open(STATE / f"{name}.log", "w") as log:
        process = subprocess.Popen(
            command, env={**kept, **values, **moved}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    note["pid"] = process.pid
    note["events"].append(["Normal", "Started", time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())])
    (STATE / f"{name}.json").write_text(json.dumps(note))


def update(told: argparse.Namespace) -> None:
    """Replaces what is given, and nothing else; another image or shape restarts the replicas."""
    note = read(told.name)
    before = json.dumps(note["spec"])
    if told.replicas_static is not None or told.autoscale_qpm:
        note["spec"].pop("auto_scaler", None)
        scale(note, told)
    if told.resource_shape:
        note["spec"]["resource_requirement"]["resource_shape"] = told.resource_shape
    restarts = told.container_image not in (None, note["spec"]["container"]["image"])
    if restarts:
        note["spec"]["container"]["image"] = told.container_image
    if json.dumps(note["spec"]) == before:
        say(f"No changes applied to endpoint {told.name}: the value(s) you provided already match.")
        return
    (STATE / f"{told.name}.json").write_text(json.dumps(note))
    if restarts:
        end(note["pid"])
        launch(told.name, note)
    say(f"Endpoint {told.name} updated.")


def end(pid: int) -> None:
    if running(pid):
        os.killpg(pid, signal.SIGTERM)
    deadline = time.monotonic() + 20
    while running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)


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
        "status": {
            "state": state(note),
            "endpoint": endpoint,
            "autoscaler_status": {"desired_replicas": note["spec"]["resource_requirement"]["min_replicas"]},
        },
    }
    say(json.dumps(document, indent=2))


def remove(told: argparse.Namespace) -> None:
    end(read(told.name)["pid"])
    (STATE / f"{told.name}.json").unlink()
    say(f"Endpoint {told.name} deleted successfully.")


def list_secrets(told: argparse.Namespace) -> None:
    say("\n".join(["Secrets", "│ Name │ Tags │", *(f"│ {name} │  │" for name in SECRETS)]))


def list_endpoints(told: argparse.Namespace) -> None:
    names = sorted(note.stem for note in STATE.glob("*.json") if note.name != "secrets.json")
    say("\n".join(["Endpoints", "┃ Name ┃ State ┃", *(f"│ {name} │ {state(read(name))} │" for name in names)]))


def events(told: argparse.Namespace) -> None:
    heads = ("Endpoint Name", "Type", "Reason", "Regarding", "Count", "Last Observed Time")
    rows = [(told.name, kind, reason, "{'kind': 'Pod'}", "1", at) for kind, reason, at in read(told.name)["events"]]
    say("\n".join(["Endpoint Events", f"┃ {' ┃ '.join(heads)} ┃", *(f"│ {' │ '.join(row)} │" for row in rows)]))


def show_log(told: argparse.Namespace) -> None:
    """Each line as JSON, among remarks of its own."""
    read(told.endpoint)
    say("Warning No end time provided. will be set to Now")
    lines = (STATE / f"{told.endpoint}.log").read_text().splitlines()[-told.limit :]
    for line in lines:
        try:
            say(json.dumps(json.loads(line), ensure_ascii=False))
        except ValueError:
            say(json.dumps(line, ensure_ascii=False))
    say(f"👆Time range: UTC|… → UTC|… total {len(lines)} lines")


def follow_log(told: argparse.Namespace) -> None:
    """Until it is interrupted, or the replica has ended."""
    say(f"Replica name not specified for {told.name}. Selecting the first replica.")
    note = read(told.name)
    with open(STATE / f"{told.name}.log") as log:
        while True:
            if line := log.readline():
                print(line, end="", flush=True)
            elif not running(note["pid"]):
                return
            else:
                time.sleep(0.05)


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
