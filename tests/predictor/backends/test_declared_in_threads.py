"""Models are read in several threads at once, at any depth of the stack and whatever is collected meanwhile."""

import gc
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pilotlight_predictor.backends.python.functions import declared


class Cycle:
    """Garbage whose end is Python code: while that runs, another thread may take over."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        sum(range(200))


@pytest.fixture
def hurry() -> Iterator[None]:
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(50)
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*thresholds)


def read_at(depth: int, path: Path) -> int:
    if depth:
        return read_at(depth - 1, path)
    for _ in range(8):
        [Cycle() for _ in range(20)]
        declared(path)
    return 1


@pytest.mark.usefixtures("hurry")
def test_no_thread_loses_count_of_another_ones_tree(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text("\n".join(f"def f{n}(x):\n    return [x + {n}, {{'a': (x, [1, 2])}}]\n" for n in range(60)))
    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(read_at, (0, 3, 6, 9), [path] * 4)) == 4
