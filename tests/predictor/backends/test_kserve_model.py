"""Subclasses of kserve.Model run unchanged. In a process of their own: kserve's protobuf names collide with others'."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import pytest

pytestmark = pytest.mark.skipif(find_spec("kserve") is None, reason="the kserve extra is not installed")

MODEL = """
    import numpy as np
    from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer
    from kserve.errors import InvalidInput

    class Doubler(Model):
        def __init__(self, name: str):
            super().__init__(name)
            self.factor = None

        def load(self):
            self.factor = 2
            self.ready = True
            return self.ready

        async def preprocess(self, payload: InferRequest, headers=None):
            self.request_id = headers.get("x-request-id")
            if payload.inputs[0].as_numpy().sum() < 0:
                raise InvalidInput("x must be positive")
            return payload

        def predict(self, payload: InferRequest, headers=None):
            x = payload.inputs[0].as_numpy()
            output = InferOutput(name="y", shape=list(x.shape), datatype="FP32")
            output.set_data_from_numpy(x * self.factor, binary_data=False)
            return InferResponse(response_id=payload.id, model_name=self.name, infer_outputs=[output])

    class V1(Model):
        def predict(self, payload, headers=None):
            return {"predictions": payload.inputs[0].as_numpy().sum(axis=1).tolist()}

    if __name__ == "__main__":
        ModelServer().start([Doubler("model")])
"""

DRIVER = """
    import sys
    from pathlib import Path
    import numpy as np
    from pilotlight_predictor.backends.python import backend
    from pilotlight_predictor.backends.base import LoadSpec
    from pilotlight_predictor.errors import BadRequest, LoadFailed
    from pilotlight_predictor.core.requests import InferRequest
    from pilotlight_predictor.repository.model_config import ModelConfig, TensorConfig
    from pilotlight_predictor.core.tensors import tensor

    path = Path(sys.argv[1])
    text = path.read_text()

    def load(text, *outputs):
        path.write_text(text)
        return backend.load(LoadSpec(ModelConfig("m", outputs=outputs), 1, path, path.parent))

    def ask(array):
        return InferRequest("m", {"x": tensor(array)}, id="r1")

    ones = np.ones((2, 3), np.float32)
    doubler = load(text.replace("class V1(Model)", "class V1"))
    good, bad = doubler.execute([ask(ones), ask(-ones)])
    assert (good["y"].array == ones * 2).all() and good["y"].datatype == "FP32"
    assert isinstance(bad, BadRequest) and "x must be positive" in str(bad), bad
    assert doubler._model.model.request_id == "r1"
    doubler.clone().close()
    doubler.close()

    v1 = load(text.replace("class Doubler(Model)", "class Doubler"), TensorConfig("total", "FP64", (-1,)))
    assert v1.execute([ask(ones)])[0]["total"].array.tolist() == [3.0, 3.0]
    tall = load(path.read_text(), TensorConfig("total", "FP64", (-1, 1)))
    assert "returned shape [2] for output 'total', must be [-1, 1]" in str(tall.execute([ask(ones)])[0])

    try:
        load(text)
    except LoadFailed as error:
        assert "defines 2 subclasses of kserve.Model (Doubler, V1), must be one" in str(error), error
    else:
        raise AssertionError("two subclasses were accepted")
    print("all good")
"""


def test_subclasses_of_kserve_model_run_unchanged(tmp_path: Path) -> None:
    model = tmp_path / "1" / "model.py"
    model.parent.mkdir()
    model.write_text(dedent(MODEL))
    done = subprocess.run(
        [sys.executable, "-c", dedent(DRIVER), str(model)], capture_output=True, text=True, timeout=300
    )
    assert done.stdout.splitlines()[-1:] == ["all good"], done.stderr


def test_kserve_is_not_imported_by_other_models(tmp_path: Path) -> None:
    code = (
        "import sys, pilotlight_predictor.backends.python.backend;"
        "print('kserve' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
