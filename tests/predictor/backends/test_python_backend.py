"""model.py as a function and as a class."""

import traceback
from typing import Any

import numpy as np
import pytest

from pilotlight_predictor.backends.python import backend
from pilotlight_predictor.core.tensors import Tensor, TensorSpec, bf16_from_float, bf16_to_float
from pilotlight_predictor.errors import BackendFailed, BadRequest, LoadFailed
from pilotlight_predictor.repository.model_config import ModelConfig

ONES = np.ones((1, 2), np.float32)


@pytest.fixture
def run(source: Any, spec: Any, ask: Any) -> Any:
    """run(text, config, x=array): the answer of one request."""

    def make(text: str, config: Any = None, **inputs: Any) -> Any:
        instance = backend.load(spec(source(text), config))
        answer = instance.execute([ask(**inputs)])[0]
        instance.close()
        return answer

    return make


def test_argument_names_are_input_names(run: Any) -> None:
    answer = run("def predict(x, y): return {'sum': x + y, 'first': x}", y=ONES, x=ONES * 2)
    np.testing.assert_array_equal(answer["sum"].array, ONES * 3)
    np.testing.assert_array_equal(answer["first"].array, ONES * 2)


@pytest.mark.parametrize(
    "text", ["def predict(x): return {'y': x}", "class Model:\n def predict(self, x): return {'y': x}"]
)
def test_values_without_a_name_are_the_only_argument(run: Any, text: str) -> None:
    np.testing.assert_array_equal(run(text, **{"": ONES})["y"].array, ONES)


@pytest.mark.parametrize("signature", ["predict(self, x, y=1)", "execute(self, inputs)", "predict(self, **inputs)"])
def test_values_without_a_name_belong_to_none_of_several_arguments(run: Any, signature: str) -> None:
    answer = run(f"class Model:\n def {signature}: return {{'y': [1]}}", **{"": ONES})
    assert isinstance(answer, BadRequest)
    assert str(answer).startswith("the model declares no inputs, so values without a name belong to none: declare them")


def test_one_array_is_the_one_output(run: Any, config: Any) -> None:
    assert list(run("def predict(x): return x", x=ONES)) == ["output"]
    assert list(run("def predict(x): return x", config(outputs={"y": ("FP32", (-1, 2))}), x=ONES)) == ["y"]
    assert list(run("OUTPUTS = {'z': ('FP32', [-1, 2])}\ndef predict(x): return x", x=ONES)) == ["z"]


def test_constants_describe_the_tensors(source: Any, spec: Any) -> None:
    text = "INPUTS = {'x': ('FP32', [-1, 4])}\nOUTPUTS: dict = {'y': ('BYTES', [-1])}\ndef predict(x): return x"
    instance = backend.load(spec(source(text)))
    assert instance.inputs == (TensorSpec("x", "FP32", (-1, 4)),)
    assert instance.outputs == (TensorSpec("y", "BYTES", (-1,)),)
    assert not instance.quick


def test_a_decorator_describes_the_tensors_of_its_class_alone(source: Any, spec: Any) -> None:
    text = """
import pilotlight
INPUTS = {"z": ("FP32", [-1])}

@pilotlight.model(name="first", inputs={"x": ("FP32", [-1, 4])}, outputs=None)
class First:
    def predict(self, x): return x

class Second:
    def predict(self, z): return z
"""
    for name, expected in {"First": TensorSpec("x", "FP32", (-1, 4)), "Second": TensorSpec("z", "FP32", (-1,))}.items():
        instance = backend.load(spec(source(text), ModelConfig("m", parameters={"class": name})))
        assert (instance.inputs, instance.outputs) == ((expected,), ())
    with pytest.raises(LoadFailed, match=r"inputs in model\.py must be a literal such as"):
        backend.load(
            spec(
                source(text.replace('{"x": ("FP32", [-1, 4])}', "TENSORS")),
                ModelConfig("m", parameters={"class": "First"}),
            )
        )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        *((value, " must be a literal such as") for value in ("make()", "{'x': 'FP32'}", "['x']")),
        ("{'x': ('FLOAT', [1])}", ": FLOAT of 'x' is not a datatype; use one of BF16, BOOL, BYTES, FP16"),
        ("{'x': ('STRING', [-1])}", ": STRING of 'x' is not a datatype; use BYTES"),
    ],
)
def test_constants_that_cannot_be_read_are_told(source: Any, spec: Any, value: str, message: str) -> None:
    with pytest.raises(LoadFailed, match=rf"INPUTS in model\.py{message}"):
        backend.load(spec(source(f"INPUTS = {value}\ndef predict(x): return x")))


def test_a_class_is_initialised_executed_and_finalised(source: Any, spec: Any, config: Any, ask: Any) -> None:
    instance = backend.load(
        spec(
            source("""
                import numpy as np
                LOG = []

                class Model:
                    def initialize(self, args):
                        self.offset = float(args["model_version"])
                        LOG.append(args["model_instance_name"])

                    def execute(self, inputs):
                        return {"y": inputs["x"] + self.offset, "log": np.array(LOG, dtype=object)}

                    def finalize(self):
                        LOG.append("gone")
            """),
            config(name="m"),
            version=7,
        )
    )
    clone = instance.clone()
    answer = clone.execute([ask(x=ONES)])[0]
    np.testing.assert_array_equal(answer["y"].array, ONES + 7)
    assert answer["log"].array.tolist() == [b"m_0", b"m_1"]
    instance.close()
    assert clone.execute([ask(x=ONES)])[0]["log"].array.tolist() == [b"m_0", b"m_1", b"gone"]


def test_a_class_may_take_the_whole_batch(source: Any, spec: Any, ask: Any) -> None:
    text = """
        class Model:
            def execute_batch(self, batch):
                return [{"y": item["x"] * len(batch)} for item in batch]
    """
    instance = backend.load(spec(source(text)))
    answers = instance.execute([ask(x=ONES), ask(x=ONES * 2)])
    assert [answer["y"].array[0, 0] for answer in answers] == [2, 4]


def test_async_requests_of_a_batch_run_concurrently(source: Any, spec: Any, ask: Any) -> None:
    """Each waits for all the others: one after another they would never end."""
    text = """
        import asyncio
        waiting = []

        async def predict(x):
            waiting.append(asyncio.get_running_loop().create_future())
            while len(waiting) < 3:
                await asyncio.sleep(0)
            return x
    """
    instance = backend.load(spec(source(text)))
    answers = instance.execute([ask(x=ONES * n) for n in range(3)])
    assert [answer["output"].array[0, 0] for answer in answers] == [0, 1, 2]
    instance.close()


def test_async_methods_share_one_loop(source: Any, spec: Any, ask: Any) -> None:
    text = """
        import asyncio, numpy as np

        class Model:
            async def initialize(self, args):
                self.loop = asyncio.get_running_loop()

            async def execute(self, inputs):
                return {"same": np.array(asyncio.get_running_loop() is self.loop)}

            async def finalize(self):
                assert asyncio.get_running_loop() is self.loop
    """
    instance = backend.load(spec(source(text)))
    assert instance.execute([ask(x=ONES)])[0]["same"].array
    instance.close()


def test_one_requests_exception_is_its_own_and_opaque(source: Any, spec: Any, ask: Any) -> None:
    text = """
        def check(x):
            if x.sum() < 0:
                raise ValueError("secret")

        def predict(x):
            check(x)
            return x
    """
    instance = backend.load(spec(source(text)))
    good, bad = instance.execute([ask(x=ONES), ask(x=-ONES)])
    assert good["output"].array.shape == (1, 2)
    assert isinstance(bad, BackendFailed)
    assert "secret" not in str(bad)
    frames = [frame.name for frame in traceback.extract_tb(bad.__cause__.__traceback__)]
    assert frames == ["predict", "check"]


def test_user_code_may_refuse_a_request(run: Any) -> None:
    text = """
        from pilotlight_predictor.errors import BadRequest

        def predict(x):
            raise BadRequest("x must be positive")
    """
    answer = run(text, x=ONES)
    assert isinstance(answer, BadRequest)
    assert str(answer) == "x must be positive"


def test_a_missing_input_is_the_clients_fault(run: Any) -> None:
    answer = run("def predict(x, y, z=None): return x", x=ONES)
    assert isinstance(answer, BadRequest)
    assert str(answer) == "missing inputs: 'y'"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return None", "the model returned NoneType, must be a dict of output name"),
        ("return (x,)", "the model returned tuple, must be a dict of output name"),
        ("return {'y': None}", "returned NoneType for output 'y', must be a numpy array"),
        ("return {'y': [[1.0], [1.0, 2.0]]}", "returned lists of different lengths for output 'y'"),
        ("return {'z': x}", "the model returned {'z': ndarray}, must also hold y"),
        ("return {'y': x, 'w': x}", "the model returned output w, must be among y"),
        ("return {'y': x[:, :1]}", "the model returned shape [1, 1] for output 'y', must be [-1, 2]"),
        ("return {'y': x[0]}", "the model returned shape [2] for output 'y', must be [-1, 2]"),
        ("return {'y': x * 1j}", "the model returned complex64 for output 'y', must be FP32"),
    ],
)
def test_a_wrong_return_is_named_with_what_is_expected(run: Any, config: Any, body: str, message: str) -> None:
    answer = run(f"def predict(x):\n    {body}", config(outputs={"y": ("FP32", (-1, 2))}), x=ONES)
    assert isinstance(answer, BackendFailed)

    assert message in str(answer)


def test_a_type_that_v2_does_not_know_is_named(run: Any) -> None:
    answer = run("def predict(x): return {'w': x * 1j}", x=ONES)
    assert "returned for output 'w': an array of complex64 has no V2 datatype" in str(answer)


def test_numbers_where_strings_are_declared_are_refused(run: Any, config: Any) -> None:
    answer = run("def predict(x): return x", config(outputs={"y": ("BYTES", (-1, 2))}), x=ONES)
    assert "returned float32 for output 'y', must be BYTES" in str(answer)


@pytest.mark.parametrize(
    ("outputs", "fields"),
    [
        ({"y": ("FP32", (3,))}, {"max_batch_size": 4}),
        ({"y": ("FP32", (9,), (3,))}, {"max_batch_size": 4}),
        ({"y": ("", ())}, {}),
    ],
    ids=["the configuration, with the batch in front", "its reshape", "OUTPUTS for what it leaves out"],
)
def test_a_shape_is_that_which_is_declared(run: Any, config: Any, outputs: Any, fields: Any) -> None:
    text = "OUTPUTS = {'y': ('FP32', [-1, 3])}\ndef predict(x): return x"
    good, bad = (run(text, config(outputs=outputs, **fields), x=np.ones((2, n), np.float32)) for n in (3, 2))
    assert good["y"].array.shape == (2, 3)
    assert "returned shape [2, 2] for output 'y', must be [-1, 3]" in str(bad)


def test_a_scalar_may_stand_for_a_vector_of_one(run: Any, config: Any) -> None:
    assert run("def predict(x): return x.sum()", config(outputs={"y": ("FP32", (1,))}), x=ONES)["y"].array == 2


def test_a_list_of_the_wrong_length_is_named(run: Any) -> None:
    answer = run("class Model:\n    def execute_batch(self, batch): return []", x=ONES)
    assert "execute_batch returned 0 responses, must be a list of 1 dicts" in str(answer)


def test_float64_becomes_what_is_declared(run: Any, config: Any) -> None:
    declared = config(outputs={"y": ("FP32", (-1, 2)), "n": ("INT32", (1,))})
    answer = run(
        "import numpy as np\ndef predict(x): return {'y': x * np.float64(2), 'n': np.array([5])}", declared, x=ONES
    )
    assert (answer["y"].datatype, answer["n"].datatype) == ("FP32", "INT32")


def test_strings_and_bf16_look_natural(run: Any, config: Any) -> None:
    declared = config(outputs={"s": ("BYTES", (1,)), "b": ("BF16", (1,))})
    text = "import numpy as np\ndef predict(s, b): return {'s': np.array([s[0].decode() + '!']), 'b': b * 2}"
    bits = Tensor("BF16", bf16_from_float(np.array([1.5], np.float32)))
    answer = run(text, declared, s=np.array([b"hi"], dtype=object), b=bits)
    assert answer["s"].array.tolist() == [b"hi!"]
    assert bf16_to_float(answer["b"].array).tolist() == [3.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", r"defines none of: def predict, .*as in model\.py:CLASS, or by the parameter class=CLASS$"),
        ("def score(x): return x", r"defines none of: .*as in model\.py:score, or by the parameter class=score$"),
        ("class Wine: pass", r"defines none of: .*as in model\.py:Wine, or by the parameter class=Wine$"),
        (
            "class A:\n    def predict(self, x): return x\nclass B(A): pass",
            r"defines none of: .*as in model\.py:A, or by the parameter class=A$",
        ),
        ("class Model: pass", r"class Model of model\.py has no method to serve: write predict\(self, x\)"),
        ("class Model:\n    def initialize(self, args): 1 / 0", "could not be initialised: ZeroDivisionError"),
        ("class Model:\n    def initialize(self, args): raise SystemExit", r"initialised: it called sys\.exit\(\);"),
        ("import sys; sys.exit(3)", r"model\.py could not be imported: it called sys\.exit\(3\); raise an exception"),
        (
            "WORDS = open('stop.txt')",
            r"FileNotFoundError: .*; relative paths start at .*: there is no stop\.txt beside model\.py either$",
        ),
        (
            "class Model:\n    def __init__(self, path): pass\n    def predict(self, x): return x",
            r"Model needs arguments \(path\), and is made without any: give them defaults, or load files",
        ),
        ("def predict(: pass", r"model\.py is not valid Python"),
    ],
)
def test_a_model_that_cannot_be_loaded_says_why(source: Any, spec: Any, text: str, message: str) -> None:
    with pytest.raises(LoadFailed, match=message):
        backend.load(spec(source(text)))


def test_lists_are_outputs_as_arrays_are(run: Any) -> None:
    answer = run("def predict(x): return {'words': ['a', 'b'], 'n': [1, 2], 'one': 0.5}", x=ONES)
    assert {name: each.datatype for name, each in answer.items()} == {"words": "BYTES", "n": "INT64", "one": "FP64"}
    assert run("def predict(x): return [1.5]", x=ONES)["output"].array.tolist() == [1.5]


def test_the_only_class_with_a_method_of_a_model_is_served_whatever_its_name(run: Any, config: Any) -> None:
    text = "class Table: pass\nclass Wine:\n    def predict(self, x): return {'y': x + 1}"
    assert run(text.replace("predict", "__call__"), config(), x=np.array([1.0]))["y"].array.tolist() == [2.0]
    assert run(text, config(), x=np.array([1.0]))["y"].array.tolist() == [2.0]


def test_a_configuration_with_other_inputs_is_refused(source: Any, spec: Any, config: Any) -> None:
    with pytest.raises(LoadFailed, match="lists the inputs image, but predict takes x"):
        backend.load(spec(source("def predict(x): return x"), config({"image": ("FP32", (1,))})))


@pytest.mark.parametrize("served", ["def predict(y): return y", "class Scorer:\n    def predict(self, y): return y"])
def test_declared_inputs_that_lack_an_argument_are_refused(served: str, source: Any, spec: Any) -> None:
    with pytest.raises(LoadFailed, match=r"predict takes y, but the declared inputs .* are x: argument names must be"):
        backend.load(spec(source(f"INPUTS = {{'x': ('FP32', [-1])}}\n{served}")))


def test_a_method_that_does_not_serve_may_take_anything(run: Any) -> None:
    text = """
INPUTS = {"x": ("FP64", [-1])}
class Scorer:
    def execute(self, inputs): return {"y": self.predict(inputs["x"])}
    def predict(self, rows): return rows + 1
"""
    assert run(text, x=np.array([1.0]))["y"].array.tolist() == [2.0]


TWO = """
class First:
    def execute(self, inputs):
        return {"first": inputs["x"]}

class Second:
    def __init__(self):
        self.factor = 3

    def predict(self, x):
        return {"second": x * self.factor}

def third(x):
    return {"third": x * 5}
"""


def test_the_class_or_function_that_is_named_serves(source: Any, spec: Any, ask: Any) -> None:
    for name, factor in {"First": 1, "Second": 3, "third": 5}.items():
        (answer,) = backend.load(spec(source(TWO), ModelConfig("m", parameters={"class": name}))).execute([ask(x=ONES)])
        np.testing.assert_array_equal(answer[name.lower()].array, ONES * factor)
    with pytest.raises(LoadFailed, match=r"model\.py of model 'm' defines no class or function Fourth"):
        backend.load(spec(source(TWO), ModelConfig("m", parameters={"class": "Fourth"})))


@pytest.mark.parametrize(("name", "cls"), [("Net", "Net"), ("", "Net"), ("", "Model")])
def test_a_torch_module_is_told_to_be_served_by_its_weights(source: Any, spec: Any, name: str, cls: str) -> None:
    pytest.importorskip("torch")
    file = source(f"import torch\n\nclass {cls}(torch.nn.Module):\n    def forward(self, x):\n        return x\n")
    advice = f"{cls} is a torch.nn.Module: put its weights beside it as model.pt, name this file model.py, and deploy"
    with pytest.raises(LoadFailed, match=advice):
        backend.load(spec(file, ModelConfig("m", parameters={"class": name} if name else {})))


@pytest.mark.parametrize(
    "methods", ["def predict(self, x)", "def initialize(self, args): ...\n    def forward(self, x)"]
)
def test_a_torch_module_with_methods_of_a_python_model_is_served(
    source: Any, spec: Any, ask: Any, methods: str
) -> None:
    pytest.importorskip("torch")
    code = f"import torch\n\nclass Net(torch.nn.Module):\n    {methods}:\n        return {{'y': x}}\n"
    (answer,) = backend.load(spec(source(code), ModelConfig("m", parameters={"class": "Net"}))).execute([ask(x=ONES)])
    np.testing.assert_array_equal(answer["y"].array, ONES)


PARKS = """
from pathlib import Path


class Model:
    park_bytes = {size}

    def execute(self, inputs):
        return inputs

    def park(self):
        pass

    wake = park

    def finalize(self):
        Path(__file__).with_name("finalized").touch()
"""


@pytest.mark.parametrize("size", ["'8GB'", "8.5", "-1"], ids=["text", "fraction", "negative"])
def test_park_bytes_that_are_no_number_of_bytes_are_refused_at_the_load(spec: Any, source: Any, size: str) -> None:
    path = source(PARKS.format(size=size))
    with pytest.raises(LoadFailed, match=f"park_bytes = {size}, must be a whole"):
        backend.load(spec(path))
    assert path.with_name("finalized").exists()


def test_park_bytes_say_what_a_parked_model_keeps(spec: Any, source: Any) -> None:
    parking = backend.load(spec(source(PARKS.format(size="600")))).parking
    assert parking is not None
    assert (parking.size, parking.host_bytes) == (600, 0)
    parking.park()
    assert parking.host_bytes == 600
