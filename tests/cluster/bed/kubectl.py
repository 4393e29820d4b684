"""Asks the bed's API server, with the kubectl that was built for it."""

import subprocess
import time
from pathlib import Path
from typing import Final

from tests.cluster.bed.places import BedError, Places

# After the machine's own restart, objects are there before the pods whose webhooks judge them.
WEBHOOKS_S: Final = 300.0


def kubectl(places: Places, *words: str, text: str | None = None) -> str:
    done = _run(places, words, text)
    if done.returncode:
        raise BedError(f"kubectl {' '.join(words)} failed: {done.stderr.strip()[-1500:]}")
    return done.stdout


def succeeds(places: Places, *words: str) -> bool:
    return _run(places, words, None).returncode == 0


def apply(places: Places, *files: Path) -> None:
    for file in files:
        _apply(places, str(file), None)


def apply_text(places: Places, text: str) -> None:
    _apply(places, "-", text)


def _apply(places: Places, source: str, text: str | None) -> None:
    end = time.monotonic() + WEBHOOKS_S
    while True:
        try:
            kubectl(places, "apply", "--server-side", "--force-conflicts", "-f", source, text=text)
            return
        except BedError as problem:
            if "failed calling webhook" not in str(problem) or time.monotonic() > end:
                raise
        time.sleep(1)


def available(places: Places, namespace: str, seconds: int = 300) -> None:
    """Waits until every Deployment of the namespace is."""
    kubectl(
        places, "-n", namespace, "wait", "--for=condition=Available", "deployment", "--all", f"--timeout={seconds}s"
    )


def _run(places: Places, words: tuple[str, ...], text: str | None) -> subprocess.CompletedProcess[str]:
    command = [str(places.kubectl), f"--kubeconfig={places.kubeconfig}", *words]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)
