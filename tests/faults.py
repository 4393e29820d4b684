"""What the tests of faults share: models that sleep or fail as they are told to, and documents that serve them."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.embedded import Platform, inference_service
from tests.http_reply import Reply

# Every request leaves a mark in FOLDER when the model gets to it; zeros, as a warm-up sends them, do not.
SLOW = """
import os, pathlib, time
INPUTS = {"x": ("FP32", [1])}
OUTPUTS = {"y": ("FP32", [1])}

def predict(x):
    if x[0]:
        pathlib.Path("FOLDER", f"{os.getpid()}-{time.monotonic_ns()}.asked").touch()
    time.sleep(float(x[0]))
    return x
"""


def model(folder: Path, source: str = SLOW) -> str:
    """The URI of a model whose code this is."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.py").write_text(source.replace("FOLDER", str(folder)))
    return folder.as_uri()


def begun(folder: Path) -> int:
    """How many requests the slow model has got to."""
    return len(list(folder.glob("*.asked")))


def served(
    uri: str, name: str = "slow", *, least: int = 1, most: int = 1, annotations: str = "", predictor: str = "",
    limits: str = "", probe: str = "",
) -> str:  # fmt: skip
    resources = f"      resources: {{limits: {{{limits}}}}}" if limits else ""
    readiness = f"      readinessProbe: {{{probe}}}" if probe else ""
    return inference_service(
        name, "python", uri, least=least, most=most, annotations=annotations, predictor=predictor,
        model=f"{resources}\n{readiness}",
    )  # fmt: skip


def seconds(value: float) -> dict[str, object]:
    """A request that keeps the slow model busy for so long."""
    return {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [value]}]}


@contextmanager
def asked_at_once(platform: Platform, count: int, each_s: float, name: str = "slow") -> Iterator[list[Future[Reply]]]:
    """Slow requests that are all on their way while the block runs; it is left when the last has its answer."""
    with ThreadPoolExecutor(count) as pool:
        path = f"/{name}/v2/models/{name}/infer"
        yield [pool.submit(platform.ask, path, seconds(each_s)) for _ in range(count)]
