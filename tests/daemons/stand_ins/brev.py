"""Stands in for `brev`: instances are rows of a file. Verbs, flags and `ls --json` are as its source has them."""

import argparse
import json
import os
import re
import sys
from pathlib import Path

FILE = Path(os.environ["BREV_STAND_IN"])


def main() -> None:
    top = argparse.ArgumentParser(prog="brev", allow_abbrev=False)
    verbs = top.add_subparsers(dest="verb", required=True)
    verbs.add_parser("ls").add_argument("--json", action="store_true", required=True)
    create = verbs.add_parser("create", allow_abbrev=False)
    create.add_argument("name")
    create.add_argument("--type", default="")
    verbs.add_parser("delete").add_argument("name")
    verbs.add_parser("refresh")
    told = top.parse_args()
    {"ls": show, "create": make, "delete": drop, "refresh": lambda _: print("refreshing brev...")}[told.verb](told)


def rows() -> list[dict[str, str]]:
    return json.loads(FILE.read_text())


def show(told: argparse.Namespace) -> None:
    print(json.dumps({"workspaces": rows() or None}, indent=2))


def make(told: argparse.Namespace) -> None:
    """Names go to standard output only where that is no terminal; everything else is said on the other stream."""
    if not re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}", told.name):
        sys.exit("name must start with a letter or digit")
    print("Waiting for instance(s) to be ready...", file=sys.stderr)
    row = {
        "name": told.name, "id": f"id{len(rows()):07}", "status": "RUNNING", "build_status": "COMPLETED",
        "shell_status": "READY", "health_status": "HEALTHY", "instance_type": told.type, "instance_kind": "gpu",
        "gpu": "-",
    }  # fmt: skip
    FILE.write_text(json.dumps([*rows(), row]))
    print(told.name)


def drop(told: argparse.Namespace) -> None:
    left = [row for row in rows() if told.name not in (row["name"], row["id"])]
    if len(left) == len(rows()):
        sys.exit(f"instance with id/name {told.name} not found")
    FILE.write_text(json.dumps(left))
    print(told.name)


main()
