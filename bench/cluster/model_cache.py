"""0 → ready of a large model that is fetched, that revisions share in a cache, and that KServe has on the node.

Its Deployment is scaled by hand, so that no autoscaler has a part in the time. The store is a stand-in for S3 on this
machine that sends as fast as planning expects of a store. What is on the disk of the node is taken out of the page
cache before each start.
"""

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from tests.cluster.bed.places import NODE_IP, places
from tests.cluster.real_cluster import Cluster, seconds_until

from bench.cluster.object_store import object_store
from bench.cluster.phases import own_phases
from bench.cluster.subjects import REQUESTS, deploy_documents
from bench.environments import WORK
from bench.load import BenchError

Json = Any
GIGABYTES: Final = 1.5
WIDTH: Final = 4096
STARTS: Final = 3
BYTES_S: Final = 200_000_000  # what planning expects: Capabilities.load_rate_bytes_s
SOURCE: Final = "s3://models/large"
START_S: Final = 300.0
ZERO_S: Final = 180.0
PREDICTOR: Final = 65532  # user of our predictor
RAW: Final = {"serving.kserve.io/deploymentMode": "Standard", "serving.kserve.io/autoscalerClass": "hpa"}
WAYS: Final[Mapping[str, Mapping[str, str]]] = {  # with their annotations
    "fetched": {}, "shared": {"pilotlight.dev/model-cache": "pvc://shared"}, "local": {},
}  # fmt: skip
LOCAL_CACHE: Final[Mapping[str, Json]] = {
    "apiVersion": "serving.kserve.io/v1alpha1", "kind": "LocalModelCache", "metadata": {"name": "large"},
    "spec": {"sourceModelUri": SOURCE, "modelSize": "2Gi", "nodeGroups": ["bench"]},
}  # fmt: skip


def measure(cluster: Cluster, starts: int = STARTS) -> dict[str, dict[str, list[float]]]:
    """Seconds of each start, by where the model is."""
    if cluster.kubeconfig != places(os.environ).kubeconfig:
        raise BenchError("only pods of the test bed reach a store and disks of this machine")
    folder = WORK / "model-cache"
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        files = {f"/models/large/{name}": path for name, path in write_model(folder / "store", GIGABYTES).items()}
        endpoint = stack.enter_context(object_store(NODE_IP, files, BYTES_S))
        access = {"AWS_ENDPOINT_URL": endpoint, "AWS_SKIP_SIGNATURE": "true"}
        stack.enter_context(_environment(access))
        namespace = stack.enter_context(_namespace(cluster))
        _deploy(cluster, namespace, folder, access)
        figures: dict[str, dict[str, list[float]]] = {way: {} for way in WAYS}
        for number in range(starts):
            for way in WAYS if number % 2 == 0 else reversed(WAYS):
                for name, seconds in _start(cluster, namespace, way, folder).items():
                    figures[way].setdefault(name, []).append(round(seconds, 3))
                shown = "  ".join(f"{name} {values[-1]:.2f}" for name, values in figures[way].items())
                print(f"model cache {number + 1}/{starts}  {way:8}  {shown}", file=sys.stderr)
    return figures


def write_model(folder: Path, gigabytes: float) -> dict[str, Path]:
    """A chain of matrices, their weights in a file beside the graph; the files by name."""
    import numpy
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    layers = round(gigabytes * 1e9 / (4 * WIDTH * WIDTH))
    weights = numpy.random.default_rng(1).normal(0, WIDTH**-0.5, (WIDTH, WIDTH)).astype(numpy.float32)
    names = ["x", *(f"h{number}" for number in range(1, layers)), "y"]
    graph = helper.make_graph(
        [helper.make_node("MatMul", [names[each], f"w{each}"], [names[each + 1]]) for each in range(layers)], "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", WIDTH])],
        [numpy_helper.from_array(weights, f"w{each}") for each in range(layers)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "model.onnx", save_as_external_data=True, location="model.onnx.data")
    for path in folder.iterdir():
        path.chmod(0o644)  # the predictor has a user of its own
    return {path.name: path for path in folder.iterdir()}


def document(way: str, access: Mapping[str, str]) -> dict[str, Json]:
    model = {
        "modelFormat": {"name": "onnx"}, "protocolVersion": "v2", "storageUri": SOURCE,
        "env": [{"name": name, "value": value} for name, value in access.items()],
        "resources": {"requests": REQUESTS, "limits": {"memory": "6Gi"}},
    }  # fmt: skip
    return {
        "apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService",
        "metadata": {"name": way, "annotations": {**RAW, **WAYS[way]}},
        "spec": {"predictor": {"minReplicas": 1, "maxReplicas": 2, "scaleMetric": "cpu", "model": model}},
    }  # fmt: skip


def _deploy(cluster: Cluster, namespace: str, folder: Path, access: Mapping[str, str]) -> None:
    """The first start of each, which fills the shared cache; KServe's is filled as its agent would."""
    cached = folder / "local" / "models" / hashlib.sha256(SOURCE.encode()).hexdigest()[:16]
    shutil.copytree(folder / "store", cached)
    (folder / "shared").mkdir()
    os.chown(folder / "shared", PREDICTOR, PREDICTOR)
    for claim, path in (("shared", folder / "shared"), ("large-bench", folder / "local")):
        cluster.apply(*_volume(namespace, claim, path), namespace=namespace)
    for way in WAYS:
        beside = [LOCAL_CACHE] if way == "local" else []
        deploy_documents(cluster, namespace, *beside, document(way, access))
        _scale(cluster, namespace, way, 0)


def _volume(namespace: str, claim: str, path: Path) -> list[Json]:
    """A claim and the folder of this machine that it gets."""
    size, name = {"storage": "4Gi"}, f"{namespace}-{claim}"
    common: Json = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {**common, "capacity": size, "hostPath": {"path": str(path), "type": "Directory"}}
    labels = {"bench.pilotlight.dev/namespace": namespace}
    return [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name, "labels": labels}, "spec": volume},
        {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": claim},
            "spec": {**common, "volumeName": name, "resources": {"requests": size}},
        },
    ]  # fmt: skip


def _scale(cluster: Cluster, namespace: str, way: str, replicas: int) -> None:
    """Until so many are ready; an HPA leaves a workload at zero alone."""
    cluster.kubectl("-n", namespace, "scale", f"deployment/{way}-predictor", f"--replicas={replicas}")
    label = f"--selector=pilotlight.dev/service={way}"
    if replicas:
        words = ("wait", "pod", label, "--for=condition=Ready", f"--timeout={START_S:g}s")
        seconds_until(lambda: bool(cluster.kubectl("-n", namespace, "get", "pod", label, "-o", "name")), "a pod", 60)
        cluster.kubectl("-n", namespace, *words)
    else:
        seconds_until(lambda: not cluster.kubectl("-n", namespace, "get", "pod", label, "-o", "name"), "zero", ZERO_S)


def _start(cluster: Cluster, namespace: str, way: str, folder: Path) -> dict[str, float]:
    forget(folder)
    begin = time.monotonic()
    _scale(cluster, namespace, way, 1)
    total = time.monotonic() - begin
    log = cluster.kubectl(
        "-n", namespace, "logs", f"--selector=pilotlight.dev/service={way}", "--timestamps", "--tail=-1"
    )
    _scale(cluster, namespace, way, 0)
    return {"total": total, **own_phases(log), "load": os.getloadavg()[0]}


def forget(folder: Path) -> None:
    """Takes what is on the node's disk out of the page cache; what the store has stays there."""
    os.sync()
    for path in (each for name in ("shared", "local") for each in (folder / name).rglob("*") if each.is_file()):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def _namespace(cluster: Cluster) -> Iterator[str]:
    name = cluster.new_namespace("bench-model-cache")
    try:
        yield name
    finally:
        cluster.kubectl("delete", "namespace", name, "--wait=false")
        cluster.kubectl("delete", "pv", "-l", f"bench.pilotlight.dev/namespace={name}", "--wait=false")


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """platformctl pins what the store has, so it asks there too."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
