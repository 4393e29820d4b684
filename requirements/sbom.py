"""Writes what an image holds, as a CycloneDX document, from the lock file it was filled from.

`python requirements/sbom.py requirements/image-cpu.txt > pilotlight.cdx.json`; standard library only, since it runs
inside the build of an image. The lock is the whole truth: every package with its version and the hashes it may have.
"""

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;]+)(?:\s*;\s*(?P<marker>[^\\\n]+))?", re.MULTILINE)
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


class Pin(NamedTuple):
    name: str
    version: str
    marker: str  # for which Python or platform; empty: for all
    hashes: tuple[str, ...]


def pins(text: str) -> list[Pin]:
    starts = list(PIN.finditer(text))
    ends = [found.start() for found in starts[1:]] + [len(text)]
    return [_pin(found, text[found.end() : end]) for found, end in zip(starts, ends, strict=True)]


def _pin(found: re.Match[str], rest: str) -> Pin:
    return Pin(found["name"], found["version"], (found["marker"] or "").strip(), tuple(HASH.findall(rest)))


def document(project: dict[str, Any], locked: list[Pin]) -> dict[str, Any]:
    own = {"type": "application", "name": project["name"], "version": project["version"], "bom-ref": "pilotlight"}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own | {"licenses": [{"license": {"id": project["license"]}}]}},
        "components": [component(pin) for pin in locked],
    }


def component(pin: Pin) -> dict[str, Any]:
    """A lock names the hashes of every file that would do: they go in as properties, not as those of one file."""
    url = f"pkg:pypi/{pin.name.lower().replace('_', '-')}@{pin.version}"
    allowed = [{"name": "pilotlight:allowed-sha256", "value": digest} for digest in pin.hashes]
    marker = [{"name": "pilotlight:marker", "value": pin.marker}] if pin.marker else []
    return {
        "type": "library", "name": pin.name, "version": pin.version, "purl": url, "bom-ref": url,
        "properties": marker + allowed,
    }  # fmt: skip


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: sbom.py LOCK_FILE\n")
        return 2
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    json.dump(document(project, pins(Path(arguments[0]).read_text())), sys.stdout, indent=1)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
