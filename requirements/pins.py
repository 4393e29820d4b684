"""Pins actions of workflows by commit, the base image by digest: `python requirements/pins.py`; `--check` only looks.

An action keeps its tag as a comment, `uses: actions/checkout@COMMIT # v4`, so that a second run renews it. Commits come
from `git ls-remote`, the digest from `skopeo`: both need a network. Standard library only.
"""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = ROOT / ".github/workflows"
CONTAINERFILE = ROOT / "Containerfile"
USES = re.compile(r"(?P<head>uses: *)(?P<action>[\w.-]+/[\w.-]+)(?P<path>[\w./-]*)@(?P<at>\S+)(?: +# *(?P<tag>\S+))?")
BASE = re.compile(r"^ARG BASE=(?P<image>[^\s@]+)(?:@(?P<digest>sha256:[0-9a-f]{64}))?$", re.MULTILINE)
DEFAULT = re.compile(r"^ARG (?P<name>\w+)=(?P<value>\S+)$", re.MULTILINE)
COMMIT = re.compile(r"[0-9a-f]{40}")
Resolve = Callable[[str, str], str]


def unpinned(text: str) -> list[str]:
    """Return what a workflow or Containerfile names by a tag that may move."""
    actions = [f"{found['action']}@{found['at']}" for found in USES.finditer(text) if not COMMIT.fullmatch(found["at"])]
    return actions + [found["image"] for found in BASE.finditer(text) if not found["digest"]]


def pin_actions(text: str, commit_of: Resolve) -> str:
    """Return a workflow whose actions are pinned to the commit that their tag names."""

    def pinned(found: re.Match[str]) -> str:
        tag = found["tag"] or found["at"]
        return f"{found['head']}{found['action']}{found['path']}@{commit_of(found['action'], tag)} # {tag}"

    return USES.sub(pinned, text)


def pin_base(text: str, digest_of: Callable[[str], str]) -> str:
    """Return a Containerfile whose base image is pinned; variables of its name get their defaults."""
    defaults = {found["name"]: found["value"] for found in DEFAULT.finditer(text)}

    def pinned(found: re.Match[str]) -> str:
        image = re.sub(r"\$\{(\w+)\}", lambda variable: defaults[variable[1]], found["image"])
        return f"ARG BASE={image}@{digest_of(image)}"

    return BASE.sub(pinned, text)


def commit_of(action: str, tag: str) -> str:
    """Return the commit of a tag; `^{}` is that of an annotated one."""
    lines = _output("git", "ls-remote", f"https://github.com/{action}", f"refs/tags/{tag}", f"refs/tags/{tag}^{{}}")
    commits = dict(reversed(line.split("\t")) for line in lines.splitlines())
    found = commits.get(f"refs/tags/{tag}^{{}}") or commits.get(f"refs/tags/{tag}", "")
    if not COMMIT.fullmatch(found):
        raise SystemExit(f"{action} has no tag {tag}: correct the workflow")
    return found


def digest_of(image: str) -> str:
    return _output("skopeo", "inspect", "--format", "{{.Digest}}", f"docker://{image}").strip()


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - made of the files above
    except FileNotFoundError:
        raise SystemExit(f"{command[0]} is not on the PATH: install it") from None
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def main(arguments: list[str]) -> int:
    files = [*sorted(WORKFLOWS.glob("*.yml")), CONTAINERFILE]
    if arguments == ["--check"]:
        open_ones = [f"{path.relative_to(ROOT)}: {name}" for path in files for name in unpinned(path.read_text())]
        sys.stdout.write("".join(f"{line}\n" for line in open_ones))
        return 1 if open_ones else 0
    if arguments:
        sys.stderr.write("usage: pins.py [--check]\n")
        return 2
    for path in files:
        path.write_text(pin_base(pin_actions(path.read_text(), commit_of), digest_of))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
