"""requirements/pins.py pins what workflows and the Containerfile name, and finds what is not pinned."""

import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "requirements"))

import pins

COMMIT, DIGEST = "a" * 40, f"sha256:{'b' * 64}"
WORKFLOW = "    - uses: actions/checkout@v4\n    - uses: a/b/sub@v1.2\n    - run: make test\n"
BASE = "ARG PYTHON=3.11\nARG BASE=python:${PYTHON}-slim\nFROM ${BASE} AS build\n"


def test_an_action_is_pinned_to_the_commit_of_its_tag_and_renewed_by_it() -> None:
    asked = []

    def commit_of(action: str, tag: str) -> str:
        asked.append((action, tag))
        return COMMIT

    once = pins.pin_actions(WORKFLOW, commit_of)
    assert f"uses: actions/checkout@{COMMIT} # v4\n" in once
    assert f"uses: a/b/sub@{COMMIT} # v1.2\n" in once
    assert pins.pin_actions(once, lambda action, tag: "c" * 40) == once.replace(COMMIT, "c" * 40)
    assert asked == [("actions/checkout", "v4"), ("a/b", "v1.2")]
    assert pins.unpinned(WORKFLOW) == ["actions/checkout@v4", "a/b@v1.2"]
    assert pins.unpinned(once) == []


def test_the_base_image_is_pinned_with_its_tag() -> None:
    once = pins.pin_base(BASE, {"python:3.11-slim": DIGEST}.__getitem__)
    assert f"ARG BASE=python:3.11-slim@{DIGEST}\n" in once
    assert pins.unpinned(BASE) == ["python:${PYTHON}-slim"]
    assert pins.unpinned(once) == []
    assert pins.pin_base(once, lambda image: DIGEST) == once


def test_what_this_tree_names_by_a_tag_is_found() -> None:
    """Every `uses:` and the base, so that a pin of another form would be noticed."""
    text = (pins.WORKFLOWS / "ci.yml").read_text()
    assert len(pins.USES.findall(text)) == len(re.findall(r"uses:", text))
    assert pins.BASE.search(pins.CONTAINERFILE.read_text())
    done = subprocess.run([sys.executable, pins.__file__, "--check"], capture_output=True, text=True)
    open_ones = [*pins.unpinned(text), *pins.unpinned(pins.CONTAINERFILE.read_text())]
    assert (done.returncode, len(done.stdout.splitlines())) == (int(bool(open_ones)), len(open_ones))


def test_an_option_that_it_does_not_have_is_refused() -> None:
    done = subprocess.run([sys.executable, pins.__file__, "--renew"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "usage: pins.py [--check]\n")
