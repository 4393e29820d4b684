"""The images that the cluster's benchmark adds to the bed: KServe's own server with the same model."""

from typing import Final

from tests.cluster.bed.archive import Layer
from tests.cluster.bed.images import import_images
from tests.cluster.bed.places import places
from tests.cluster.bed.python_layers import python_image

from bench.environments import ROOT

KSERVE: Final = "dev.local/kserve-iris:1"
HELLO: Final = "dev.local/hello:1"
_LOCK: Final = ROOT / "requirements" / "bench-kserve.txt"
_COMMAND: Final = ("python", "/app/kserve_app.py", "8080", "iris=/models/iris/model.onnx")
_FILES: Final = (
    Layer(ROOT / "bench/cluster/kserve_app.py", "/app/kserve_app.py"),
    Layer(ROOT / "bench/peers/kserve_server.py", "/app/kserve_server.py"),
    Layer(ROOT / "examples/iris/model.onnx", "/models/iris/model.onnx"),
)


def import_kserve() -> None:
    """Packed and imported where the bed does not have it yet."""
    import_images(places(), [python_image(places(), KSERVE, _LOCK, _COMMAND, _FILES, env=("PYTHONPATH=/app",))])
