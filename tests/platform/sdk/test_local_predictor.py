"""`pilotlight.test`: models in the real predictor, with their exceptions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.platform.sdk.served_models import Doubled, Shift, Unfit, negated

import pilotlight
from pilotlight.client import ResponseError

ONES = np.ones((1, 2), np.float32)


def test_a_class_of_a_file_answers_as_it_would_when_deployed() -> None:
    with pilotlight.test(Shift, name="shift") as shift:
        np.testing.assert_array_equal(shift.infer("shift", {"x": ONES})["y"], ONES + 10)
        assert shift.client.models()


def test_a_function_answers() -> None:
    with pilotlight.test(negated) as model:
        np.testing.assert_array_equal(model.infer({"x": ONES})["y"], -ONES)


def test_an_exception_of_the_model_comes_with_its_traceback() -> None:
    with pilotlight.test(Shift) as shift:
        with pytest.raises(ResponseError) as raised:
            shift.infer({"x": 1000 * ONES})
        (note,) = raised.value.__notes__
        assert 'raise ValueError("more than a thousand")' in note
        assert "served_models.py" in note
        np.testing.assert_array_equal(shift.infer({"x": ONES})["y"], ONES + 10)
        with pytest.raises(pilotlight.PlatformError) as other:
            shift.infer("another", {"x": ONES})
        assert not hasattr(other.value, "__notes__")  # not the traceback of the request before


def test_declared_tensors_are_checked_and_files_lie_beside_the_source(tmp_path: Path) -> None:
    file = tmp_path / "weights.npy"
    np.save(file, np.array([2.0, 3.0]))

    @pilotlight.model(inputs={"x": ("FP32", [-1, 2])}, outputs={"y": ("FP32", [-1])}, files=[str(file)])
    class Weighted:
        def initialize(self, args: Any) -> None:
            self.weights = np.load(Path(__file__).parent / "weights.npy")

        async def predict(self, x: np.ndarray) -> np.ndarray:
            return x @ self.weights

    with pilotlight.test(Weighted) as weighted:
        assert weighted.infer({"x": ONES})["y"].tolist() == [5.0]
        with pytest.raises(ValueError, match="'x'"):
            weighted.infer({"x": np.ones((1, 3), np.float32)})


def test_a_model_that_does_not_load_says_why() -> None:
    class Broken:
        def initialize(self, args: Any) -> None:
            raise RuntimeError("no weights")

        def predict(self, x: np.ndarray) -> np.ndarray:
            return x

    with pytest.raises(pilotlight.PlatformError, match="RuntimeError: no weights") as raised:
        pilotlight.test(Broken)
    assert 'raise RuntimeError("no weights")' in "".join(raised.value.__notes__)


def test_options_that_belong_beside_a_file_are_refused() -> None:
    with pytest.raises(pilotlight.UsageError, match=r"is served from .*served_models.py, where requirements") as raised:
        pilotlight.test(Unfit)
    assert raised.value.__notes__ == ["write requirements.txt next to it, and leave the option out"]


def test_tensors_are_declared_at_a_class_of_a_file() -> None:
    with pilotlight.test(Doubled) as doubled:
        assert doubled.infer([1, 2])["y"].tolist() == [[2.0, 4.0]]
        with pytest.raises(pilotlight.InvalidInput, match=r"has shape \[1, 3\], expected \[-1, 2\]"):
            doubled.infer({"x": np.ones((1, 3))})


def test_a_lambda_and_a_missing_file_are_refused() -> None:
    with pytest.raises(pilotlight.UsageError, match="a lambda has no name"):
        pilotlight.test(lambda x: x)

    @pilotlight.model(files=["/nonexistent.npy"])
    class Missing:
        def predict(self, x: np.ndarray) -> np.ndarray:
            return x

    with pytest.raises(pilotlight.UsageError, match=r"/nonexistent\.npy does not exist"):
        pilotlight.test(Missing)


@pytest.mark.parametrize(("files", "problem"), [(["a/w", "b/w"], "the same name"), (["/"], "does not exist")])
def test_files_without_a_name_of_their_own_are_refused(files: list[str], problem: str) -> None:
    @pilotlight.model(files=files)
    class Unclear:
        def predict(self, x: np.ndarray) -> np.ndarray:
            return x

    with pytest.raises(pilotlight.UsageError, match=problem):
        pilotlight.test(Unclear)
