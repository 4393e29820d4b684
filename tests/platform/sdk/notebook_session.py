"""A notebook without a kernel: cells run in IPython's own shell, in a process of its own, within an event loop."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

RUN = """
import asyncio, json, sys
from IPython.core.interactiveshell import InteractiveShell
async def run(shell, cells):
    for cell in cells:
        if not (await shell.run_cell_async(cell, store_history=True)).success:
            sys.exit(1)
asyncio.run(run(InteractiveShell.instance(), json.load(sys.stdin)))
"""


def run_cells(cells: Sequence[str], env: Mapping[str, str] | None = None, timeout_s: float = 300.0) -> str:
    """Run cells one after the other; return what they printed. Fails with the traceback of the first that raises."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PILOTLIGHT_", "INFERENCE_"))}
    clean |= {"IPYTHONDIR": "/nonexistent", "NO_COLOR": "1", **(env or {})}
    done = subprocess.run(
        [sys.executable, "-c", RUN], input=json.dumps(list(cells)), env=clean, capture_output=True, text=True,
        timeout=timeout_s,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
