"""A Python model written for Triton runs unchanged."""

import json
from typing import Any

import numpy as np
import pytest

from pilotlight_predictor.backends.python import backend
from pilotlight_predictor.core.requests import RequestedOutput
from pilotlight_predictor.errors import BackendFailed, BadRequest, LoadFailed, PredictorError, Unavailable

# After add_sub of Triton's own python_backend examples.
ADD_SUB = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.args = args
            self.model_config = model_config = json.loads(args["model_config"])
            output0_config = pb_utils.get_output_config_by_name(model_config, "OUTPUT0")
            self.output0_dtype = pb_utils.triton_string_to_numpy(output0_config["data_type"])

        def execute(self, requests):
            responses = []
            for request in requests:
                in_0 = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
                in_1 = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
                if in_0.shape != in_1.shape:
                    error = pb_utils.TritonError("shapes differ", pb_utils.TritonError.INVALID_ARG)
                    responses.append(pb_utils.InferenceResponse(output_tensors=[], error=error))
                    continue
                out_0 = pb_utils.Tensor("OUTPUT0", (in_0 + in_1).astype(self.output0_dtype))
                out_1 = pb_utils.Tensor("OUTPUT1", in_0 - in_1)
                responses.append(pb_utils.InferenceResponse(output_tensors=[out_0, out_1]))
            return responses

        def finalize(self):
            print("Cleaning up...")
"""
ONES = np.ones(4, np.float32)
NO_CALLS = "models can be called only by a model.py that a server has loaded"


@pytest.fixture
def add_sub(config: Any) -> Any:
    four = ("FP32", (4,))
    return config({"INPUT0": four, "INPUT1": four}, {"OUTPUT0": four, "OUTPUT1": four}, name="add_sub")


@pytest.fixture
def run(source: Any, spec: Any, ask: Any) -> Any:
    def make(execute: str) -> Any:
        text = f"""
            import numpy as np
            import triton_python_backend_utils as pb_utils

            class TritonPythonModel:
                def execute(self, requests):
                    {execute}
        """
        return backend.load(spec(source(text))).execute([ask(x=ONES)])[0]

    return make


def test_the_add_sub_example_answers_each_request(source: Any, spec: Any, add_sub: Any, ask: Any) -> None:
    instance = backend.load(spec(source(ADD_SUB), add_sub))
    right = ask(INPUT0=ONES * 3, INPUT1=ONES)
    wrong = ask(INPUT0=ONES, INPUT1=np.ones(2, np.float32))
    first, second = instance.execute([right, wrong])
    np.testing.assert_array_equal(first["OUTPUT0"].array, ONES * 4)
    np.testing.assert_array_equal(first["OUTPUT1"].array, ONES * 2)
    assert isinstance(second, BadRequest)
    assert str(second) == "shapes differ"
    instance.close()


def test_initialize_gets_tritons_arguments(source: Any, spec: Any, add_sub: Any) -> None:
    path = source(ADD_SUB)
    instance = backend.load(spec(path, add_sub, version=3))
    args = instance._model.model.args
    document = json.loads(args.pop("model_config"))
    assert document["output"][0] == {
        "name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [4],
        "label_filename": "", "is_shape_tensor": False, "is_non_linear_format_io": False,
    }  # fmt: skip
    assert args == {
        "model_instance_kind": "CPU",
        "model_instance_name": "add_sub_0",
        "model_instance_device_id": "0",
        "model_repository": str(path.parent),
        "model_version": "3",
        "model_name": "add_sub",
    }


def test_a_request_tells_what_was_asked(source: Any, spec: Any, add_sub: Any, ask: Any) -> None:
    text = """
        import triton_python_backend_utils as pb_utils
        SEEN = []

        class TritonPythonModel:
            def execute(self, requests):
                SEEN.extend((r.request_id(), r.correlation_id(), r.requested_output_names()) for r in requests)
                assert [t.name() for t in requests[0].inputs()] == ["x"]
                assert pb_utils.get_input_tensor_by_name(requests[0], "absent") is None
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", t.as_numpy())])
                        for r in requests for t in r.inputs()]
    """
    instance = backend.load(spec(source(text), add_sub))
    named, plain = ask(x=ONES), ask(x=ONES)
    named.id, named.parameters, named.outputs = "r1", {"sequence_id": 5}, (RequestedOutput("OUTPUT0"),)
    instance.execute([named, plain])
    seen = instance._module.module.SEEN
    assert seen == [("r1", 5, ["OUTPUT0"]), ("", 0, ["OUTPUT0", "OUTPUT1"])]


@pytest.mark.parametrize(
    ("execute", "kind", "message"),
    [
        ("raise pb_utils.TritonModelException('told to the client')", PredictorError, "told to the client"),
        ("raise ValueError('secret')", BackendFailed, "model 'm' raised ValueError: see the server's log"),
        ("return None", BackendFailed, "execute returned NoneType, must be a list of 1 InferenceResponse"),
        ("return []", BackendFailed, "execute returned 0 responses, must be a list of 1"),
        ("return [{'y': 1}]", BackendFailed, "execute returned dict in its list, must be InferenceResponse"),
        (
            "return [pb_utils.InferenceResponse(error=pb_utils.TritonError('busy', pb_utils.TritonError.UNAVAILABLE))]",
            Unavailable,
            "busy",
        ),
        ("pb_utils.InferenceRequest(model_name='n', inputs=[]).exec()", PredictorError, NO_CALLS),
        ("requests[0].exec()", PredictorError, NO_CALLS),
    ],
)
def test_failures_keep_their_kind(run: Any, execute: str, kind: type[Exception], message: str) -> None:
    answer = run(execute)
    assert isinstance(answer, kind)
    assert message in str(answer)


def test_outputs_are_held_to_the_configuration_and_unknown_ones_dropped(
    source: Any, spec: Any, ask: Any, add_sub: Any
) -> None:
    text = """
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                x = requests[0].inputs()[0].as_numpy()
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", x), pb_utils.Tensor("debug", x)])]
    """
    instance = backend.load(spec(source(text), add_sub))
    assert list(instance.execute([ask(x=ONES)])[0]) == ["OUTPUT0"]
    (answer,) = instance.execute([ask(x=ONES[:2])])
    assert isinstance(answer, BackendFailed)
    assert str(answer) == "the model returned shape [2] for output 'OUTPUT0', must be [4]"


def test_strings_go_both_ways(run: Any) -> None:
    answer = run("return [pb_utils.InferenceResponse([pb_utils.Tensor('s', np.array(['a', 'bc']))])]")
    assert answer["s"].datatype == "BYTES"
    assert answer["s"].array.tolist() == [b"a", b"bc"]


def test_a_model_without_execute_is_refused(source: Any, spec: Any) -> None:
    with pytest.raises(LoadFailed, match=r"TritonPythonModel of model\.py has no execute\(requests\)"):
        backend.load(spec(source("class TritonPythonModel: pass")))
