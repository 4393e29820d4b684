"""Names in the source of Python models: paths of files, the module that is served."""

import time
from pathlib import Path

import pytest

from pilotlight.wire.model_formats.python_code import (
    MAX_NAMES,
    imported_packages,
    literal_paths,
    modules_with,
    served_modules,
    served_names,
    source_names,
)


@pytest.mark.parametrize(
    ("expression", "path"),
    [
        ('open(here / "weights.json")', "weights.json"),
        ('open("./weights.json")', "weights.json"),
        ('here / "data" / "words.txt"', "data/words.txt"),
        ('here / "data/words.txt"', "data/words.txt"),
        ('os.path.join(here, "data", "words.txt")', "data/words.txt"),
        ('here.joinpath("data", "words.txt")', "data/words.txt"),
        ('(here / "data").joinpath("words.txt")', "words.txt"),
        ('f"{here}/words.txt"', "words.txt"),
        ('here + "/words.txt"', "words.txt"),
    ],
)
def test_a_literal_path_is_found_however_it_is_joined(expression: str, path: str) -> None:
    assert path in source_names(expression.encode()).files


@pytest.mark.parametrize(
    "literal", ["../secret", ".env", ".ssh/id_rsa", "data/../../secret", "a\0b", "\ud800/x", "", "/", ".", b"bytes", 5]
)
def test_no_path_leads_out_of_the_folder_or_to_hidden_files(literal: object) -> None:
    assert not source_names(f"x = {literal!a}".encode()).files


@pytest.mark.parametrize(
    "source", ["def (", "\0", "(" * 9000, "x = " + '"a" / ' * 9000 + '"b"', "'" + "x" * 5000 + "'"]
)
def test_code_that_is_not_python_or_generated_names_nothing(source: str) -> None:
    assert not source_names(source.encode()).files


def test_the_files_of_imported_modules_count_and_those_of_others_do_not(tmp_path: Path) -> None:
    (tmp_path / "scorer.py").write_text('import feats.rows\nfrom . import words\nopen("a.json")')
    (tmp_path / "feats.py").write_text('import scorer, json\nopen("b.json")')
    (tmp_path / "words.py").write_text('from .deep import x\nopen("c.json")')
    (tmp_path / "deep.py").write_text('open("d.json")')
    (tmp_path / "train.py").write_text('open("train.csv")')
    assert literal_paths(tmp_path / "scorer.py") == {"a.json", "b.json", "c.json", "d.json"}
    assert literal_paths(tmp_path / "net.pt") == set()
    (tmp_path / "model.py").write_text("import deep")
    assert literal_paths(tmp_path / "net.pt") == {"d.json"}


def test_the_module_of_a_folder_is_its_model_py_or_the_one_that_defines_the_name(tmp_path: Path) -> None:
    (tmp_path / "scorer.py").write_text("class Scorer: ...")
    (tmp_path / "train.py").write_text("from scorer import Scorer\nclass Twice: ...")
    (tmp_path / "other.py").write_text("class Twice: ...")
    assert modules_with(tmp_path, "Scorer") == [tmp_path / "scorer.py"]
    assert modules_with(tmp_path, "Twice") == [tmp_path / "other.py", tmp_path / "train.py"]
    assert modules_with(tmp_path, "None_") == []
    assert modules_with(tmp_path, "Twice_") == []
    (tmp_path / "again.py").write_text("from lib.core import Elsewhere\nMade = make()")
    assert modules_with(tmp_path, "Elsewhere") == modules_with(tmp_path, "Made") == [tmp_path / "again.py"]
    (tmp_path / "model.py").write_text("from other import Twice")
    assert modules_with(tmp_path, "Twice") == [tmp_path / "model.py"]
    assert modules_with(tmp_path, "Scorer") == [tmp_path / "scorer.py"]
    assert modules_with(tmp_path, "None_") == [tmp_path / "model.py"]


def test_what_can_be_served_has_predict_and_is_no_estimator_or_torch_module(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "class A:\n    def predict(self, x): ...\n\n\nclass _B(A):\n    def predict(self): ..."
    )
    (tmp_path / "b.py").write_text("class B:\n    def predict(self, x): ...\n    def fit(self, x): ...")
    (tmp_path / "c.py").write_text("async def predict(x): ...\n\n\ndef score(x): ...")
    (tmp_path / "d.py").write_text("import a")
    assert served_modules(tmp_path) == {tmp_path / "a.py": ["A"], tmp_path / "c.py": ["predict"]}
    assert served_names(tmp_path / "missing.py") == []


def test_generated_code_costs_no_more_than_its_bounds(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("\n".join(f"import m{number}" for number in range(15_000)))
    (tmp_path / "m0.py").write_text('open("weights.json")')
    started = time.process_time()
    assert literal_paths(file) <= {"weights.json"}
    assert len(source_names(b"\n".join(b"import n%d" % number for number in range(15_000))).modules) == MAX_NAMES
    file.write_text("x = " + " / ".join(['"a"'] * 800))
    assert max(map(len, literal_paths(file))) < 40
    file.write_text("class A(" + "a." * 900 + "b): ...")
    assert modules_with(tmp_path, "A") == [file]
    assert time.process_time() - started < 10


def test_the_packages_of_a_model_are_those_of_its_code_and_of_no_environment_below(tmp_path: Path) -> None:
    (tmp_path / "rooms.py").write_text("import torch")
    (tmp_path / ".venv/lib").mkdir(parents=True)
    (tmp_path / ".venv/lib/model.py").write_text("import jax")
    (tmp_path / "model.py").write_text("import json, rooms")
    assert imported_packages(tmp_path) == {"json", "torch"}
