import numpy as np
import pytest

from pilotlight_predictor.backends.torch.tensors import OutOfDeviceMemory, run_or_halve
from pilotlight_predictor.core.requests import Inputs, Outputs
from pilotlight_predictor.core.tensors import tensor

torch = pytest.importorskip("torch")


class Device:
    """Doubles what it gets, if it has room for so many rows."""

    def __init__(self, room: int) -> None:
        self.room, self.seen = room, []

    def run(self, inputs: Inputs) -> Outputs:
        array = inputs["x"].array
        self.seen.append(len(array))
        if len(array) > self.room:
            raise torch.OutOfMemoryError(f"no room for {len(array)} rows")
        return {"y": tensor(array * 2)}

    def answer(self, rows: int, batched: bool = True) -> Outputs:
        inputs = {"x": tensor(np.arange(rows * 3, dtype=np.float32).reshape(rows, 3))}
        return run_or_halve(self.run, inputs, model="m", batched=batched)


def test_a_batch_that_fits_runs_once() -> None:
    device = Device(room=8)
    device.answer(8)
    assert device.seen == [8]


def test_a_batch_that_does_not_fit_is_run_in_two_halves_in_order() -> None:
    device = Device(room=4)
    outputs = device.answer(7)
    assert device.seen == [7, 4, 3]
    np.testing.assert_array_equal(outputs["y"].array, np.arange(21, dtype=np.float32).reshape(7, 3) * 2)


def test_halves_that_do_not_fit_either_fail_with_the_setting_to_change() -> None:
    device = Device(room=2)
    with pytest.raises(OutOfDeviceMemory, match=r"max_batch_size.*no room for 4 rows") as failure:
        device.answer(8)
    assert device.seen == [8, 4]
    assert "x [8, 3]" in str(failure.value)


@pytest.mark.parametrize(("rows", "batched"), [(1, True), (6, False)])
def test_what_cannot_be_cut_is_tried_again_whole(rows: int, batched: bool) -> None:
    device = Device(room=0)
    with pytest.raises(OutOfDeviceMemory, match="twice"):
        device.answer(rows, batched)
    assert device.seen == [rows, rows]


def test_the_first_failure_is_forgotten_before_memory_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception keeps its frames and so their tensors alive: the cache could not give them back."""
    import gc
    import weakref

    alive: list[weakref.ref[object]] = []

    class Held:
        pass

    def run(inputs: Inputs) -> Outputs:
        if not alive:
            held = Held()
            alive.append(weakref.ref(held))
            raise torch.OutOfMemoryError
        return {"y": inputs["x"]}

    freed: list[object] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(alive[0]()))
    gc.disable()
    try:
        run_or_halve(run, {"x": tensor(np.zeros(1))}, model="m", batched=True)
    finally:
        gc.enable()
    assert freed == [None]
