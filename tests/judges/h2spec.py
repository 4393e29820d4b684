"""The real h2spec, which plays 145 cases of HTTP/2 and HPACK against a server, built from its pinned Go module.

It was published before Go had module files, so the modules that it needs are pinned here.
"""

import subprocess
import tempfile
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from tests.judges.gomodules import program

VERSION: Final = "v2.2.1+incompatible"
RUN_SECONDS: Final = 300
REQUIREMENTS: Final = f"""\
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
"""

Case = tuple[str, str]  # section, what h2spec sends


def h2spec() -> str:
    return program("github.com/summerwind/h2spec/cmd/h2spec", VERSION, REQUIREMENTS)


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
