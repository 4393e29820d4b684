"""Workspace of DGX Cloud Lepton by its CLI `lep`: its verbs, and what they print."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pilotlight.errors import PlatformError
from pilotlight.targets.programs import CompletedCommand, Programs

Json = Any
LOGIN: Final = "lep login, or see lep workspace list"
# Its tables and documents are wrapped at the terminal's width, even within a word.
PLAIN: Final = {"COLUMNS": "100000", "NO_COLOR": "1", "TERM": "dumb"}
MAX_LINES: Final = 5000
# A line of `lep log get`: text as a JSON string, JSON as it is. Others are remarks of the program.
_LOGGED: Final = re.compile(r'".*"|\{.*\}|\[.*\]')


class Workspace:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self.programs = Programs({**environ, **PLAIN})

    def endpoint(self, verb: str, name: str, *words: str) -> str:
        """Run `lep endpoint VERB`."""
        return self.programs.run_checked(["lep", "endpoint", verb, "--name", name, *words], hint=LOGIN)

    def get(self, name: str) -> dict[str, Json] | None:
        """Return the document of an endpoint; None: there is none."""
        done = self.programs.run(["lep", "endpoint", "get", "--name", name])
        if is_missing(done):
            return None
        if done.code:
            raise PlatformError(f"lep endpoint get failed: {done.summary}", LOGIN)
        return read_document(done.out)

    def remove(self, name: str) -> None:
        done = self.programs.run(["lep", "endpoint", "remove", "--name", name])
        if done.code and not is_missing(done):
            raise PlatformError(f"lep endpoint remove failed: {done.summary}", LOGIN)

    def check_secrets(self, names: Iterable[str]) -> None:
        """Raise PlatformError if the workspace does not answer, or lacks one of the secrets."""
        done = self.programs.run(["lep", "secret", "list"])
        if done.code:
            raise PlatformError(f"the Lepton workspace does not answer: {done.summary}", LOGIN)
        there = set(re.findall(r"[\w-]+", done.out))
        if missing := [name for name in names if name not in there]:
            problem = f"the Lepton workspace has no secret {missing[0]}"
            raise PlatformError(problem, "add it in the workspace's settings: its value is never sent by platformctl")

    def log(self, name: str, tail: int) -> list[str]:
        """Return the last lines; none if there are none yet, or the workspace does not tell them."""
        words = ["lep", "log", "get", "--endpoint", name, "--limit", str(tail), "--without-timestamp"]
        done = self.programs.run(words)
        return read_log(done.out)[-tail:] if done.code == 0 else []


def read_document(text: str) -> dict[str, Json]:
    """Parse `lep endpoint get`: one JSON object, possibly with lines around it."""
    try:
        document = json.loads(text[text.index("{") : text.rindex("}") + 1], strict=False)
    except ValueError:
        raise PlatformError("lep endpoint get did not print JSON", "pip install -U leptonai") from None
    return document if isinstance(document, dict) else {}


def read_log(text: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines() if _LOGGED.fullmatch(line.strip())]
    return [str(json.loads(line)) if line.startswith('"') else line for line in lines]


def address(document: Mapping[str, Json]) -> str:
    endpoint = (document.get("status") or {}).get("endpoint") or {}
    return str(endpoint.get("external_endpoint") or "").rstrip("/")


def state_of(document: Mapping[str, Json]) -> str:
    return str((document.get("status") or {}).get("state") or "UNK")


def is_missing(done: CompletedCommand) -> bool:
    return bool(done.code) and re.search(r"\b404\b", done.out + done.err) is not None
