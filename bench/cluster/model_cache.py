"""0 → first answer of a large model that is fetched, that revisions share in a cache, and that KServe has on the node.

The store is a stand-in for S3 on this machine that sends as fast as planning expects of a store. What is on the disk
of the node is taken out of the page cache before each start.
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
from bench.cluster.scalers import KEDA, hurry
from bench.cluster.subjects import REQUESTS, deploy_documents
from bench.environments import WORK
from bench.load import BenchError

Json = Any
GIGABYTES: Final = 1.5
WIDTH: Final = 4096
STARTS: Final = 3
BYTES_S: Final = 200_000_000  # what planning expects: Capabilities.load_rate_bytes_s
SOURCE: Final = "s3://models/large"
ANSWER_S: Final = 300.0
ZERO_S: Final = 180.0
PREDICTOR: Final = 65532  # user of our predictor
BODY: Final = {"inputs": [{"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": [1.0] * WIDTH}]}
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
        hosts = _deploy(cluster, namespace, folder, access)
        figures: dict[str, dict[str, list[float]]] = {way: {} for way in WAYS}
        for number in range(starts):
            seconds_until(lambda: not _pods(cluster, namespace), "all at zero", ZERO_S)
            for way in WAYS if number % 2 == 0 else reversed(WAYS):
                for name, seconds in _start(cluster, namespace, way, hosts[way], folder).items():
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
        "metadata": {"name": way, "annotations": {**KEDA, **WAYS[way]}},
        "spec": {"predictor": {"minReplicas": 0, "maxReplicas": 1, "model": model}},
    }  # fmt: skip


def _deploy(cluster: Cluster, namespace: str, folder: Path, access: Mapping[str, str]) -> dict[str, str]:
    """The first start of each, which fills the shared cache; KServe's is filled as its agent would."""
    cached = folder / "local" / "models" / hashlib.sha256(SOURCE.encode()).hexdigest()[:16]
    shutil.copytree(folder / "store", cached)
    (folder / "shared").mkdir()
    os.chown(folder / "shared", PREDICTOR, PREDICTOR)
    for claim, path in (("shared", folder / "shared"), ("large-bench", folder / "local")):
        cluster.apply(*_volume(namespace, claim, path), namespace=namespace)
    hosts: dict[str, str] = {}
    for way in WAYS:
        beside = [LOCAL_CACHE] if way == "local" else []
        hosts[way] = deploy_documents(cluster, namespace, *beside, document(way, access))
        hurry(cluster, namespace, way)
    return hosts


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


def _start(cluster: Cluster, namespace: str, way: str, host: str, folder: Path) -> dict[str, float]:
    forget(folder)
    begin = time.monotonic()
    path = f"/v2/models/{way}/infer"
    reply = cluster.ask(host, path, BODY, through=cluster.gateway, timeout=ANSWER_S)
    total = time.monotonic() - begin
    if reply.status != 200:
        raise BenchError(f"{way} answered {reply.status}: {reply.body[:200]!r}")
    label = f"pilotlight.dev/service={way}"
    log = cluster.kubectl("-n", namespace, "logs", "-l", label, "--timestamps", "--tail=-1")
    return {"total": total, **own_phases(log)}


def forget(folder: Path) -> None:
    """Takes what is on the node's disk out of the page cache; what the store has stays there."""
    os.sync()
    for path in (each for name in ("shared", "local") for each in (folder / name).rglob("*") if each.is_file()):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _pods(cluster: Cluster, namespace: str) -> list[str]:
    return cluster.kubectl("-n", namespace, "get", "pods", "-o", "name").split()


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
