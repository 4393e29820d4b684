"""Recovery from out-of-memory on a device: free the cache, then retry the batch in two halves.

Stands between a backend's `run` and its runtime. The exception class and the recovery are arguments, for tests without
a GPU.
"""

from collections.abc import Callable

from pilotlight_predictor.batch import join, split
from pilotlight_predictor.errors import BackendFailed
from pilotlight_predictor.inference import Inputs, Outputs

Run = Callable[[Inputs], Outputs]


class OutOfDeviceMemory(BackendFailed):
    """Neither the batch nor its halves fit; the text names the setting to change."""


def run_or_halve(
    run: Run,
    inputs: Inputs,
    *,
    model: str,
    batched: bool,
    out_of_memory: type[BaseException],
    recover: Callable[[], None],
) -> Outputs:
    """Return `run(inputs)`; after `out_of_memory`, recover and run each half, or the whole if it cannot be split."""
    try:
        return run(inputs)
    except out_of_memory:
        pass  # the traceback's frames reference the tensors: recover only after it is released
    recover()
    parts = halves(inputs) if batched else [inputs]
    try:
        return join([run(part) for part in parts])
    except out_of_memory as again:
        reason = str(again)
    recover()
    raise OutOfDeviceMemory(_advice(model, inputs, len(parts), reason))


def halves(inputs: Inputs) -> list[Inputs]:
    """Split a batch into two parts; one part for a single row or if the inputs differ in rows."""
    rows = {tensor.array.shape[0] if tensor.array.ndim else 0 for tensor in inputs.values()}
    size = rows.pop() if len(rows) == 1 else 1
    if size < 2:
        return [inputs]
    middle = (size + 1) // 2
    return list(split(inputs, [middle, size - middle]))


def _advice(model: str, inputs: Inputs, parts: int, reason: str) -> str:
    shapes = ", ".join(f"{name} {list(tensor.array.shape)}" for name, tensor in inputs.items())
    tried = "in two halves too" if parts == 2 else "twice"
    return (
        f"model {model!r} ran out of device memory {tried} ({shapes}): lower max_batch_size in its configuration, "
        f"or its instance_group count; the runtime said: {reason}"
    )
