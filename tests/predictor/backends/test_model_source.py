"""A model.py and its neighbours keep to themselves."""

import importlib
import sys
import threading
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from types import ModuleType

import pytest
from tests.eventually import eventually

from pilotlight_predictor.backends.python.source import UserModule
from pilotlight_predictor.errors import LoadFailed

Write = Callable[..., Path]


def loaded(path: Path) -> UserModule:
    found = UserModule(path, path.parent.parent)
    assert found.module
    return found


def test_two_versions_have_their_own_neighbours_of_one_name(source: Write) -> None:
    model = "import words\ndef say(): return words.WORD"
    first, second = (loaded(source(model, words=f"WORD = {word!r}")) for word in ("one", "two"))
    assert (first.module.say(), second.module.say()) == ("one", "two")


@pytest.mark.parametrize(
    "statement",
    ["import words", "from words import WORD", "from . import words", "from .words import WORD", "import words as w"],
)
def test_an_import_inside_a_function_finds_the_neighbour_later(source: Write, statement: str) -> None:
    module = loaded(source(f"def late():\n    {statement}\n    return 'found'", words="WORD = 1")).module
    assert module.late() == "found"


def test_packages_and_folders_beside_the_model_are_found(source: Write) -> None:
    path = source("import parts.inner.deep\nfrom loose import extra\nVALUE = parts.inner.deep.VALUE + extra.VALUE")
    for file, text in {
        "parts/__init__.py": "",
        "parts/inner/__init__.py": "from parts import base",
        "parts/base.py": "VALUE = 1",
        "parts/inner/deep.py": "from parts.base import VALUE",
        "loose/extra.py": "VALUE = 10",
    }.items():
        (path.parent / file).parent.mkdir(exist_ok=True, parents=True)
        (path.parent / file).write_text(text)
    assert loaded(path).module.VALUE == 11


def test_files_of_the_model_directory_are_found_too(source: Write) -> None:
    path = source("import shared\nVALUE = shared.VALUE")
    (path.parent.parent / "shared.py").write_text("VALUE = 'of all versions'")
    assert loaded(path).module.VALUE == "of all versions"


def test_nothing_leaks_into_the_process(source: Write) -> None:
    before = list(sys.path)
    module = loaded(source("import json, words\nVALUE = words.VALUE", words="VALUE = 1", json="VALUE = 'shadow'"))
    import json

    assert json.dumps({}) == "{}"
    assert "words" not in sys.modules
    assert sys.path == before
    assert module.module.json.VALUE == "shadow"


def test_the_last_close_forgets_the_modules(source: Write) -> None:
    found = loaded(source("import words", words=""))
    names = {found.module.__name__, found.module.words.__name__}
    found.share()
    found.close()
    assert names <= set(sys.modules)
    found.close()
    assert not names & set(sys.modules)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"{found.module.__package__}.words")


def test_who_asks_one_finder_after_the_other_passes_over_none_when_it_is_forgotten(source: Write) -> None:
    found = loaded(source("X = 1"))
    order = [*sys.meta_path]
    found.close()
    assert sys.meta_path == order


def test_it_is_forgotten_while_other_threads_import(source: Write) -> None:
    path, usual, over = source("X = 1"), sys.getswitchinterval(), threading.Event()
    known = {name for name in sys.modules if name.startswith("pilotlight_models.")}

    def importing() -> None:
        for number in cycle(range(50)):
            sys.modules[f"busy.m{number}"] = ModuleType("busy")
            sys.modules.pop(f"busy.m{(number + 25) % 50}", None)
            if over.is_set():
                return

    thread = threading.Thread(target=importing)
    thread.start()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(200):
            loaded(path).close()
    finally:
        sys.setswitchinterval(usual)
        over.set()
        thread.join()
        for number in range(50):
            sys.modules.pop(f"busy.m{number}", None)
    assert known == {name for name in sys.modules if name.startswith("pilotlight_models.")}


def test_a_model_is_imported_while_the_import_of_another_waits(source: Write, tmp_path: Path) -> None:
    text = f"""
        import pathlib, time
        folder, deadline = pathlib.Path({str(tmp_path)!r}), time.monotonic() + 20
        (folder / "waits").touch()
        while not (folder / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        IN_TIME = time.monotonic() < deadline
    """
    first: list[UserModule] = []
    thread = threading.Thread(target=lambda: first.append(loaded(source(text))))
    thread.start()
    eventually((tmp_path / "waits").exists, "the import of the first model")
    loaded(source("X = 1"))
    (tmp_path / "go").touch()
    thread.join()
    assert first[0].module.IN_TIME


def test_a_failing_import_is_told_with_the_users_own_frames(source: Write) -> None:
    with pytest.raises(LoadFailed, match=r"model\.py could not be imported: ZeroDivisionError") as failure:
        loaded(source("import words", words="1 / 0"))
    cause = failure.value.__cause__
    assert cause is not None
    assert cause.__traceback__ is not None
    assert cause.__traceback__.tb_frame.f_code.co_filename.endswith("model.py")


@pytest.mark.parametrize(
    "read",
    ["pickle.load(file)", "pickle.loads(file.read())", "pickle.Unpickler(file).load()", "joblib.load(path)",
     "cloudpickle.load(file)", "pandas.read_pickle(path)"],
)  # fmt: skip
def test_pickles_that_a_model_reads_name_its_neighbours_and_for_their_script_itself(
    source: Write, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == "cloudpickle"]:
        monkeypatch.delitem(sys.modules, name)  # it has the functions of pickle of its import, after ours in a server
    text = (
        "import pickle\nimport cloudpickle, joblib, pandas\nfrom pathlib import Path\nfrom words import Word\n"
        "class Own: ...\npath = Path(__file__).with_name('m.pkl')\n"
        f"with path.open('rb') as file: READ = {read}\nSAME = READ == (Word, Own)"
    )
    read_by = []
    for pickled in (b"cwords\nWord\nc__main__\nOwn\n\x86.", b"c__main__\nlog\n."):
        path = source(text, words="class Word: ...")
        path.with_name("m.pkl").write_bytes(pickled)
        read_by.append(UserModule(path, path.parent))
    assert read_by[0].module.SAME
    assert "words" not in sys.modules
    why = r"(m\.pkl|a pickle) needs __main__\.log, of the script that saved it: define or import log in a model\.py in"
    with pytest.raises(LoadFailed, match=why) as failure:
        assert read_by[1].module
    assert (failure.value.__cause__, failure.value.__suppress_context__) == (None, True)  # one line for its reader


@pytest.mark.parametrize("verb", ["deploy(fn)", "deploy('other.onnx')", "canary('fn', fn)"])
def test_a_model_that_deploys_when_it_is_imported_says_where_to_put_that(source: Write, verb: str) -> None:
    text = f"import pilotlight\ndef fn(x): return x\ndef main(): pilotlight.{verb}\nmain()"
    why = r"model\.py deploys when it is imported: put these lines under `if __name__ == \"__main__\":`"
    with pytest.raises(LoadFailed, match=why):
        loaded(source(text))


def test_a_library_that_is_not_installed_is_named(source: Write) -> None:
    with pytest.raises(LoadFailed, match="the package 'no_such_library' is not installed; name it in"):
        loaded(source("import no_such_library"))


def test_a_library_of_a_module_beside_a_pickle_is_not_looked_for_in_requirements(tmp_path: Path) -> None:
    (tmp_path / "feats.py").write_text("import no_such_library")
    with pytest.raises(LoadFailed, match="'no_such_library' is not installed; install it where the predictor runs"):
        UserModule(tmp_path / "model.py", tmp_path).pickled("feats", "Scale")


def test_a_relative_path_that_fails_is_explained_by_the_file_that_has_it(tmp_path: Path) -> None:
    (tmp_path / "scorer.py").write_text("WEIGHTS = open('weights.json')")
    (tmp_path / "weights.json").write_text("{}")
    module = UserModule(tmp_path / "scorer.py", tmp_path)
    try:
        with pytest.raises(LoadFailed, match=r'"weights\.json" is the file beside scorer\.py$'):
            _ = module.module
    finally:
        module.close()
