"""Models of frameworks on a real cluster: planning picks the variant of our image, and its pods serve them."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests import object_stores
from tests.cluster.bed.images import import_images
from tests.cluster.bed.places import NODE_IP, places
from tests.cluster.bed.predictor_image import FRAMEWORKS, framework_image
from tests.cluster.real_cluster import Cluster
from tests.cluster.scenarios import Json, Story

ROWS = np.array([[5.1, 3.5, 1.4, 0.2], [6.7, 3.0, 5.2, 2.3]], np.float32)
PYTHON_MODEL = """
import numpy

INPUTS = {"x": ("FP32", [-1, 4])}
OUTPUTS = {"y": ("FP32", [-1])}


def predict(x):
    return {"y": x.sum(axis=1, dtype=numpy.float32)}
"""


class Written(NamedTuple):
    """A model file, what it must answer to ROWS, and variables of its container."""

    file: Path
    answer: list[float]
    env: dict[str, str] = {}  # noqa: RUF012 - a NamedTuple has no other way


def _python(folder: Path) -> Written:
    (folder / "model.py").write_text(PYTHON_MODEL)
    return Written(folder / "model.py", ROWS.sum(axis=1).tolist())


def _torch_export(folder: Path) -> Written:
    import torch

    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    rows = torch.export.Dim("rows")
    program = torch.export.export(Twice(), (torch.from_numpy(ROWS),), dynamic_shapes={"x": {0: rows}})
    torch.export.save(program, folder / "model.pt2")
    return Written(folder / "model.pt2", (2 * ROWS).ravel().tolist())


def _sklearn(folder: Path) -> Written:
    """A pickle, pinned by its hash."""
    import joblib
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression().fit(ROWS, [0, 1])
    joblib.dump(model, folder / "model.joblib")
    digest = hashlib.sha256((folder / "model.joblib").read_bytes()).hexdigest()
    return Written(folder / "model.joblib", [0, 1], {"INFERENCE_TRUST_PICKLE": f"model.joblib={digest}"})


def _xgboost(folder: Path) -> Written:
    import xgboost

    model = xgboost.XGBRegressor(n_estimators=3).fit(ROWS, [1.0, 2.0])
    model.save_model(folder / "model.ubj")
    return Written(folder / "model.ubj", model.predict(ROWS).tolist())


MODELS: dict[str, tuple[str, Callable[[Path], Written]]] = {
    "python": ("", _python),
    "torch-export": ("-torch", _torch_export),
    "sklearn": ("-sklearn", _sklearn),
    "xgboost": ("-sklearn", _xgboost),
}


@pytest.fixture(scope="module")
def endpoint(cluster: Cluster) -> Iterator[str]:
    """S3 on this machine, where pods reach it, beside the images that its models need."""
    if cluster.kubeconfig != places(os.environ).kubeconfig:
        pytest.skip("only the pods of the test bed reach a server of this machine")
    import_images(places(), [framework_image(places(), variant) for variant in FRAMEWORKS])
    with object_stores.moto(NODE_IP) as address:
        yield address


def service(name: str, uri: str, env: dict[str, str]) -> Json:
    model = {
        "modelFormat": {"name": name}, "runtime": "pilotlight", "storageUri": uri, "protocolVersion": "v2",
        "env": [{"name": key, "value": value} for key, value in env.items()],
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "2Gi"}},
    }  # fmt: skip
    return {
        "apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "metadata": {"name": name},
        "spec": {"predictor": {"minReplicas": 1, "model": model}},
    }  # fmt: skip


def infer(story: Story, url: str) -> Any:
    """The first output for ROWS, sent under the name that the model gives its input."""
    host = url.removeprefix("http://")
    metadata = json.loads(story.cluster.ask(host, f"/v2/models/{story.name}", timeout=120).body)
    tensor = {"name": metadata["inputs"][0]["name"], "shape": list(ROWS.shape), "datatype": "FP32"}
    body = {"inputs": [tensor | {"data": ROWS.ravel().tolist()}]}
    reply = story.cluster.ask(host, f"/v2/models/{story.name}/infer", body, timeout=120)
    assert reply.status == 200, reply.body
    return json.loads(reply.body)["outputs"][0]["data"]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_served_by_the_variant_that_loads_it(
    cluster: Cluster, namespace: str, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    suffix, write = MODELS[name]
    model = write(tmp_path)
    bucket = object_stores.s3_bucket(endpoint, name)
    bucket.put(model.file.name, model.file.read_bytes())
    for key, value in bucket.env.items():  # platformctl pins the content
        monkeypatch.setenv(key, value)
    story = Story(cluster, namespace, name)
    url = story.deploy(json.dumps(service(name, bucket.uri(model.file.name), bucket.env | model.env)))
    assert infer(story, url) == pytest.approx(model.answer, rel=1e-5)
    (pod,) = story.pods()
    assert pod["spec"]["containers"][0]["image"] == f"pilotlight/predictor:0.1.0{suffix}"
    story.do("delete", name)
    story.wait_gone()
