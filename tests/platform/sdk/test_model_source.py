"""Sources of models: the module that is written runs alone and does what the original does."""

import dataclasses
import functools
import itertools
import math
import subprocess
import sys
import textwrap
import xml.etree.ElementTree
from math import tau as turn
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from numpy import exp
from numpy.typing import NDArray
from tests.platform.sdk.notebook_session import run_cells

from pilotlight.errors import UsageError
from pilotlight.sdk.model import model
from pilotlight.sdk.model_folder import served_model
from pilotlight.sdk.model_source import module_source

SCALE = 2.5
LABELS = {"a": [1, 2], "b": (None, True)}
INFINITE = math.inf
WEIGHTS = np.ones(3)
LONG = "x" * 100_000


def written(served: Any, **expected: Any) -> dict[str, Any]:
    """The namespace of the module, executed alone."""
    namespace: dict[str, Any] = {"__name__": "model"}
    exec(compile(module_source(served), "model.py", "exec"), namespace)
    return namespace


def scaled(x: float, factor: float = SCALE) -> float:
    return x * factor


def doubled(function: Any) -> Any:
    @functools.wraps(function)
    def called(x: float) -> float:
        return 2 * float(function(x))

    return called


def repeated(times: int) -> Any:
    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def called(x: float) -> float:
            return sum(function(x) for _ in range(times))

        return called

    return decorate


@doubled
@repeated(3)
def decorated(x: float) -> float:
    return x


@functools.lru_cache(maxsize=len(LABELS))
def cached(x: float) -> float:
    return x + SCALE


@dataclasses.dataclass(frozen=True)
class Point:
    x: float
    y: float = SCALE


class Base:
    labels = LABELS

    def __init__(self) -> None:
        self.count = 0


class Whole(Base):
    """Of everything that a class may refer to."""

    SCALE = SCALE  # the class attribute is read from the global of the same name
    point = Point(1.0)

    def __init__(self) -> None:
        super().__init__()

    async def predict(self, x: npt.NDArray[np.float32], y: "NDArray[Any] | None" = None) -> Any:
        np = self.count
        return np, scaled(2.0), cached(1.0), decorated(1.0), exp(0.0), turn, [SCALE + 1 for SCALE in range(2)]

    @staticmethod
    def parse(text: str) -> str:
        return xml.etree.ElementTree.fromstring(text).tag

    @functools.cached_property
    def first(self) -> Any:
        return next(itertools.chain.from_iterable([[INFINITE]]))


def even(n: int) -> bool:
    return n == 0 or odd(n - 1)


def odd(n: int) -> bool:
    return n > 0 and even(n - 1)


def test_a_class_brings_all_that_it_refers_to() -> None:
    namespace = written(Whole)
    made = namespace["Whole"]()
    assert made.predict.__code__.co_flags & 0x80  # a coroutine
    assert (made.SCALE, made.labels, made.point.y) == (SCALE, LABELS, SCALE)
    with pytest.raises(StopIteration) as ended:
        made.predict(None).send(None)
    assert ended.value.value == (0, 5.0, 3.5, 6.0, 1.0, math.tau, [1, 2])
    assert (made.parse("<a/>"), made.first) == ("a", math.inf)


def test_the_module_is_readable_and_needs_no_other_file(tmp_path: Path) -> None:
    text = module_source(Whole)
    assert "import numpy as np\n" in text
    assert "import xml.etree.ElementTree\n" in text
    assert "from numpy import exp\n" in text
    assert "\nSCALE = 2.5\n" in text
    assert "NDArray" not in text.partition("class ")[0].replace("npt", "") or "from numpy.typing import NDArray" in text
    file = tmp_path / "model.py"
    file.write_text(text)
    subprocess.run([sys.executable, "-I", str(file)], check=True, timeout=60)


def test_functions_that_call_each_other_are_written_once() -> None:
    assert module_source(even).count("def ") == 2
    assert written(even)["even"](4)


def test_variables_of_the_function_around_are_constants() -> None:
    factor, offset = 3, (1, 2)

    def shifted(x: float) -> float:
        return x * factor + offset[0]

    class Local:
        def predict(self, x: float) -> float:
            return shifted(x)

    assert written(Local)["Local"]().predict(2.0) == 7.0


def test_an_instance_has_its_attributes() -> None:
    point = model(Base())
    point.count = 7
    assert written(point)["Base"]().count == 7


def test_a_decorator_of_ours_is_left_out_with_what_it_refers_to() -> None:
    weights = Path("weights.npy")

    @model(
        files=[str(weights)],
    )
    @dataclasses.dataclass
    class Decorated:
        factor: int = 2

        def predict(self, x: float) -> float:
            return x * self.factor

    assert "weights" not in module_source(Decorated)
    assert written(Decorated)["Decorated"]().predict(1.0) == 2.0


def failing(served: Any) -> tuple[str, str]:
    with pytest.raises(UsageError) as raised:
        module_source(served)
    return str(raised.value), raised.value.hint


def test_a_value_that_is_no_literal_is_named_with_the_fix() -> None:
    def predict(x: Any) -> Any:
        return x @ WEIGHTS

    message, fix = failing(predict)
    assert message == "model 'predict': 'WEIGHTS' is a numpy.ndarray, whose value cannot be written as source"
    assert fix.startswith("create it in initialize(), or save it to a file")


def test_a_long_constant_is_refused() -> None:
    def predict(x: Any) -> Any:
        return LONG

    assert "'LONG' is a str" in failing(predict)[0]


def test_an_attribute_of_an_instance_that_is_no_literal_is_named() -> None:
    made = Base()
    made.weights = np.ones(2)  # type: ignore[attr-defined]
    assert failing(made)[0] == "model 'Base': its attribute 'weights' cannot be written as source"


def refused(served: Any, folder: Path) -> tuple[str, str]:
    with pytest.raises(UsageError) as raised:
        served_model(served, folder)
    return str(raised.value), raised.value.hint


def test_a_model_of_a_known_library_is_to_be_saved_and_its_class_trained(tmp_path: Path) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    message, fix = refused(linear_model.LinearRegression().fit([[0.0], [1.0]], [0.0, 1.0]), tmp_path)
    assert message == "LinearRegression is a model of sklearn, and models of libraries are deployed from a file"
    assert fix.endswith('joblib.dump(model, "NAME.joblib") and deploy("NAME.joblib", trust_pickle=True)')
    assert "is an untrained class of sklearn" in refused(linear_model.LinearRegression, tmp_path)[0]


@pytest.mark.parametrize(
    ("served", "subject"),
    [(None, "None"), ([1], "[1]"), (len, "<built-in function len>"), (np, "an object of type module"),
     (np.zeros(99), "an object of type ndarray"), (functools.partial(scaled, 2.0), "an object of type partial"),
     ("x".upper, "an object of type builtin_function_or_method")],
)  # fmt: skip
def test_what_is_no_model_is_named_with_what_is(served: Any, subject: str, tmp_path: Path) -> None:
    message, fix = refused(served, tmp_path)
    assert message == f"{subject} is no model"
    assert fix.startswith("give a path or URI of a model, a class")


def test_declared_tensors_need_a_datatype_and_a_shape(tmp_path: Path) -> None:
    def predict(x: Any) -> Any:
        return x

    message, fix = refused(model(inputs={"x": "FP32"})(predict), tmp_path)  # type: ignore[dict-item]
    assert message == "inputs of @pilotlight.model: 'x' is 'FP32', must be a datatype and a shape"
    assert fix == """such as {'x': ("FP32", [-1, 4])}"""


@pytest.mark.parametrize("option", ["requirements", "files"])
def test_a_text_is_no_list_of_packages_or_files(option: str) -> None:
    with pytest.raises(UsageError, match=rf"{option} of @pilotlight.model is 'numpy', must be a list such as"):
        model(**{option: "numpy"})  # type: ignore[call-overload]


def test_a_value_of_the_main_module_is_not_imported_by_joblib_s_name_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "__mp_main__", sys.modules[__name__])

    def predict(x: Any) -> Any:
        return x @ WEIGHTS

    assert "'WEIGHTS' is a numpy.ndarray" in failing(predict)[0]


def test_an_instance_with_slots_is_refused() -> None:
    class Slotted:
        __slots__ = ("a",)

        def predict(self, x: Any) -> Any:
            return x

    assert "__slots__" in failing(Slotted())[0]


def test_a_class_attribute_of_the_function_around_is_refused() -> None:
    size = 3

    class Local:
        shape = (size,)

        def predict(self, x: Any) -> Any:
            return x

    assert failing(Local)[0] == "model 'Local': 'size' is a local variable of a function"


def test_a_decorator_that_hides_its_function_is_refused() -> None:
    hidden = (lambda function: lambda x: function(x))(scaled)

    def predict(x: Any) -> Any:
        return hidden(x)

    message, fix = failing(predict)
    assert message.startswith("model 'predict': 'hidden' is a function called '<lambda>'")
    assert "functools.wraps" in fix


def test_two_meanings_of_one_name_are_refused() -> None:
    def first() -> Any:
        factor = 1

        def inner() -> int:
            return factor

        return inner

    inner, factor = first(), True  # equal to 1, and another value

    def predict(x: Any) -> Any:
        return inner() * factor

    assert failing(predict)[0] == "model 'predict': two different objects are called 'factor'"


NOTEBOOK = [
    "%load_ext autoreload\nimport numpy as np, dataclasses",
    "from collections import OrderedDict as Ordered",
    "SHIFT = 1",
    """
    !true
    %pwd
    @dataclasses.dataclass
    class Settings:
        shift: int = SHIFT
        name: str = "a # no comment"
    """,
    "def scaled(x: np.ndarray, by=SHIFT) -> np.ndarray:\n    return x * by",
    "import pilotlight",
    """
    @pilotlight.model(name="digits",
                      requirements=["six"])
    class Digits:
        kept = Ordered(a=1)
        def initialize(self, args):
            self.settings = Settings()
        def predict(self, x):
            return scaled(x, 2) + self.settings.shift
    x = Digits.predict
    """,
    "from pilotlight.sdk.model_source import module_source\nprint(module_source(Digits))",
]


def test_cells_of_a_notebook_have_a_source() -> None:
    text = run_cells([textwrap.dedent(cell) for cell in NOTEBOOK])
    namespace: dict[str, Any] = {"__name__": "model"}
    exec(compile(text, "model.py", "exec"), namespace)
    digits = namespace["Digits"]()
    digits.initialize({})
    assert digits.predict(3) == 7
    assert "ipython" not in text.lower()
    assert "from collections import OrderedDict as Ordered\n" in text


def test_a_cell_that_runs_again_is_served_as_it_is_now() -> None:
    text = run_cells([
        "class Labels:\n    a = 1",
        "class Model:\n    def predict(self, x):\n        return Labels.a",
        "class Labels:\n    a = 2",
        "class Model:\n    def predict(self, x):\n        return Labels.a + 10",
        "from pilotlight.sdk.model_source import module_source\nprint(module_source(Model))",
    ])  # fmt: skip
    namespace: dict[str, Any] = {"__name__": "model"}
    exec(compile(text, "model.py", "exec"), namespace)
    assert namespace["Model"]().predict(0) == 12


LIMIT = 1


class Tuned:
    """Its attributes are set after its definition."""

    threshold = 1
    limit = LIMIT
    name: str = "a"
    kept = (1, -2)

    def predict(self, x: int) -> tuple[Any, ...]:
        return x, self.threshold, self.limit, self.name, self.kept


def test_class_attributes_are_served_as_they_are_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tuned, "threshold", 5)
    monkeypatch.setattr(Tuned, "name", "it's b")
    monkeypatch.setattr(sys.modules[__name__], "LIMIT", 9)  # which the class has read before
    assert written(Tuned)["Tuned"]().predict(0) == Tuned().predict(0) == (0, 5, 1, "it's b", (1, -2))


def test_a_replaced_method_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tuned, "predict", scaled)
    with pytest.raises(UsageError, match="its method 'predict' was replaced"):
        module_source(Tuned)


def halved(x: float) -> float:
    return x / 2


def test_a_function_that_was_wrapped_later_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "halved", doubled(halved))
    with pytest.raises(UsageError, match="'halved' was wrapped after its definition"):
        module_source(halved)
