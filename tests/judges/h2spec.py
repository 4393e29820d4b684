"""The real h2spec, which plays 145 cases of HTTP/2 and HPACK against a server, built from its pinned Go module.

It was published before Go had module files, so the modules that it needs are pinned here.
"""

import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from tests.judges.gomodules import Unavailable, cache_root, go, made_once, module_cache, say

VERSION: Final = "v2.2.1+incompatible"
BUILD_SECONDS: Final = 600
RUN_SECONDS: Final = 300
MODULE: Final = f"""module h2spec

go 1.23

require (
	github.com/fatih/color v1.18.0
	github.com/inconshreveable/mousetrap v1.1.0
	github.com/mattn/go-colorable v0.1.14
	github.com/mattn/go-isatty v0.0.20
	github.com/spf13/cobra v1.10.2
	github.com/spf13/pflag v1.0.9
	github.com/summerwind/h2spec {VERSION}
	golang.org/x/net v0.42.0
	golang.org/x/sys v0.34.0
	golang.org/x/text v0.27.0
)
"""

Case = tuple[str, str]  # section, what h2spec sends


@cache
def h2spec() -> str:
    """Path of the program; the first call on a machine builds it, which takes a minute."""
    folder = cache_root() / f"h2spec-{VERSION}"
    if not folder.is_dir():
        with made_once(folder) as filling:
            if filling is not None:
                say(f"building h2spec {VERSION}; once, in about a minute")
                _build(filling)
    return str(folder / "h2spec")


def failures(port: int, path: str = "/", timeout_s: int = 2) -> dict[Case, str]:
    """Return the cases that a server on this machine fails, each with what was expected and what came."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        flags = ["-h", "127.0.0.1", "-p", str(port), "-P", path, "-o", str(timeout_s), "-j", str(report)]
        subprocess.run([h2spec(), *flags], capture_output=True, timeout=RUN_SECONDS, check=False)
        cases = list(ElementTree.parse(report).iter("testcase"))
    assert len(cases) > 140, f"h2spec played {len(cases)} cases"
    marked = [(case, problem) for case in cases for problem in (case.find("error"), case.find("failure"))]
    return {
        (case.attrib["package"].removeprefix("http2/"), case.attrib["classname"]): problem.text or ""
        for case, problem in marked
        if problem is not None
    }


def _build(folder: Path) -> None:
    with module_cache() as environment, tempfile.TemporaryDirectory() as source:
        Path(source, "go.mod").write_text(MODULE)
        command = ["nice", "-n", "19", go(), "build", "-mod=mod", "-trimpath", "-o", str(folder / "h2spec")]
        done = subprocess.run(
            [*command, "github.com/summerwind/h2spec/cmd/h2spec"], env={**environment, "CGO_ENABLED": "0"}, cwd=source,
            capture_output=True, text=True, timeout=BUILD_SECONDS, check=False,
        )  # fmt: skip
    if done.returncode or not os.access(folder / "h2spec", os.X_OK):
        raise Unavailable(f"h2spec cannot be built: {done.stderr.strip()[-300:]}")
