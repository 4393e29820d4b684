"""Which requirements a model has, and which lines of them are refused."""

from pathlib import Path

import pytest

from pilotlight.wire.environments.requirements import RequirementsRefused, find, judge


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("code", "requirements", "model"),
    [
        ("model.py", "requirements.txt", "."),
        ("classify.py", "requirements.txt", "classify.py"),
        ("1/model.py", "requirements.txt", "."),
        ("1/model.py", "1/requirements.txt", "."),
        ("iris/1/model.py", "iris/requirements.txt", "."),
        ("model.py", "requirements.txt", "requirements.txt"),
        ("model.py", "requirements.txt", "net.pth"),
        ("model.py", "requirements.txt", "m.joblib"),
    ],
)
def test_requirements_are_found_in_every_layout_of_a_model(
    tmp_path: Path, code: str, requirements: str, model: str
) -> None:
    write(tmp_path / "net.pth")
    write(tmp_path / "m.joblib")
    write(tmp_path / code)
    wanted = write(tmp_path / requirements, "tiny")
    found = find(str(tmp_path / model))
    assert found is not None
    assert (Path(found.path), found.lines) == (wanted, ("tiny",))


def test_requirements_without_code_of_ours_are_none(tmp_path: Path) -> None:
    write(tmp_path / "requirements.txt", "tiny")  # such as those of an MLflow model
    for name in ("model.onnx", "net.pt", "m.joblib"):
        write(tmp_path / name)
        assert find(str(tmp_path / name)) is None
    assert find(str(tmp_path)) is None
    assert find(str(tmp_path / "gone")) is None


def test_a_folder_with_a_class_in_another_file_has_requirements(tmp_path: Path) -> None:
    write(tmp_path / "requirements.txt", "tiny")
    write(tmp_path / "scorer.py", "class Scorer: ...")
    assert find(str(tmp_path)) is None
    write(tmp_path / "scorer.py", "class Scorer:\n    def predict(self, x): ...")
    found = find(str(tmp_path))
    assert found is not None
    assert found.lines == ("tiny",)


def test_a_file_of_requirements_wins_over_a_lock(tmp_path: Path) -> None:
    write(tmp_path / "model.py")
    for name in ("uv.lock", "pyproject.toml"):
        write(tmp_path / name, "version = 1")
    locked = find(str(tmp_path))
    assert locked is not None
    assert locked.name == "uv.lock"
    write(tmp_path / "requirements.txt", "tiny")
    plain = find(str(tmp_path))
    assert plain is not None
    assert plain.name == "requirements.txt"


def test_a_lock_without_its_project_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "model.py")
    write(tmp_path / "uv.lock", "version = 1")
    with pytest.raises(RequirementsRefused, match=r"pyproject\.toml cannot be read"):
        find(str(tmp_path))


def test_models_of_one_folder_must_agree(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name / "1" / "model.py")
        write(tmp_path / name / "requirements.txt", "tiny")
    assert find(str(tmp_path)) is not None
    write(tmp_path / "b" / "requirements.txt", "tiny>1")
    with pytest.raises(RequirementsRefused, match=r"a/requirements\.txt and .*b/requirements\.txt differ"):
        find(str(tmp_path))


def test_what_people_write_is_read() -> None:
    text = b"""\xef\xbb\xbf# of the model
--only-binary=:all:
tiny == 1.0  # a comment
numpy>=2,<3 ; python_version >= "3.11"
transformers[torch,vision] ~= 5.0
pinned==1.0 \\
    --hash=sha256:00ff \\
    --hash=sha256:11ee

legacy (>=1.0)
"""
    assert judge(text, "requirements.txt") == (
        "tiny == 1.0",
        'numpy>=2,<3 ; python_version >= "3.11"',
        "transformers[torch,vision] ~= 5.0",
        "pinned==1.0 --hash=sha256:00ff --hash=sha256:11ee",
        "legacy (>=1.0)",
    )


def test_a_refusal_names_file_line_and_fix() -> None:
    with pytest.raises(RequirementsRefused) as refused:
        judge(b"tiny\n-r more.txt", "requirements.txt")
    assert str(refused.value) == "requirements.txt, line 2: -r more.txt: other files are not read"
    assert refused.value.hint == "write its lines into requirements.txt"
    with pytest.raises(RequirementsRefused, match="is not UTF-8"):
        judge(b"\xff", "requirements.txt")
