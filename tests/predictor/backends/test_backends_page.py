"""docs/reference/backends.md says what is so: its examples are run, and every backend is on it."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.doc_pages import page_section

from pilotlight_predictor import backends
from pilotlight_predictor.backends.python import backend
from pilotlight_predictor.core import backend_table
from pilotlight_predictor.errors import LoadFailed

PAGE = page_section("docs/reference/backends.md", "Backends")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def block(marker: str) -> str:
    return next(text for text in BLOCKS if marker in text)


def test_every_backend_is_on_the_page() -> None:
    for row in backend_table.TABLE:
        for name in row.names:
            assert f"`{name}`" in PAGE


def test_the_example_model_answers(source: Any, spec: Any, ask: Any) -> None:
    instance = backend.load(spec(source(block("def predict"))))
    answer = instance.execute([ask(x=np.ones((2, 4), np.float32))])[0]
    assert answer["y"].array.tolist() == [4.0, 4.0]


def test_the_worked_example_is_a_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: Any, ask: Any) -> None:
    (tmp_path / "linear.py").write_text(block("class LinearInstance"))
    row = eval(block("BackendEntry(").strip(), {"BackendEntry": backend_table.BackendEntry})
    monkeypatch.setattr(backends, "__path__", [*backends.__path__, str(tmp_path)])
    monkeypatch.setattr(backend_table, "TABLE", (*backend_table.TABLE, row))

    path = tmp_path / "model.npz"
    np.savez(path, weight=np.eye(3, 2, dtype=np.float32), bias=np.ones(2, np.float32))
    found = backend_table.backend_for_file(path)
    assert found is not None
    module = backend_table.module(found)
    instance = module.load(spec(path))
    answers = instance.execute([ask(x=np.full((1, 3), n, np.float32)) for n in (1, 2)])
    assert [answer["y"].array.tolist() for answer in answers] == [[[2.0, 2.0]], [[3.0, 3.0]]]
    path.write_bytes(b"nothing")
    with pytest.raises(LoadFailed, match=r"model\.npz must be an \.npz with weight and bias"):
        module.load(spec(path))
