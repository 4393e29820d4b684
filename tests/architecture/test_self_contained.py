"""No file names a machine, a package index or a folder outside the repository."""

import re
import subprocess

import pytest
from tests.architecture.source_tree import ROOT

# A letter stands in brackets, so that this file does not find itself.
FORBIDDEN = {
    "a path of somebody's machine": r"(?<![\w.$~-])/(?:[w]ork|[r]oot|[h]ome/\w+)/",
    "a package index": r"[p]ypi\.org|files\.[p]ythonhosted|registry\.[n]pmjs|proxy\.[g]olang|static\.[c]rates",
    "a folder beside the checkout": r"\.\./[s]hared\b",
    "a merge that was not finished": r"^(?:<{7}|>{7}) ",
}


def texts() -> dict[str, str]:
    """Every file that is, or is about to be, in the repository and is text."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True,
    ).stdout.decode()  # fmt: skip
    found = {}
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path.is_file() and b"\0" not in (content := path.read_bytes())[:8192]:
            found[name] = content.decode(errors="replace")
    return found


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a git checkout to know which files are its own")
@pytest.mark.parametrize(("what", "pattern"), FORBIDDEN.items(), ids=FORBIDDEN)
def test_no_file_names(what: str, pattern: str) -> None:
    expression = re.compile(pattern, re.MULTILINE)
    hits = [
        f"{name}:{text.count(chr(10), 0, hit.start()) + 1}: {hit.group()}"
        for name, text in texts().items()
        for hit in expression.finditer(text)
    ]
    assert not hits, f"{what} in {', '.join(hits[:10])}"
