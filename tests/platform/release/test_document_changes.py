"""Changed fields between two releases: paths, values, models; without what a deploy records itself."""

import pytest

from pilotlight.release.document_changes import changed_fields
from pilotlight.targets.target import Release

DOCUMENT = """
metadata:
  name: iris
  annotations:
    team: a
    pilotlight.dev/planned-with: '{"target": "local"}'
spec:
  predictor:
    minReplicas: 0
    containers:
    - name: main
      env: [{name: A, value: "1"}, {name: B, value: "2"}]
"""


def release(text: str) -> Release:
    return Release("default", "iris", text, ())


def changes(old: str, new: str) -> list[str]:
    return [str(each) for each in changed_fields(release(DOCUMENT), release(DOCUMENT.replace(old, new)))]


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        ("minReplicas: 0", "minReplicas: 2", "spec.predictor.minReplicas: 0 → 2"),
        ("    minReplicas: 0\n", "", "spec.predictor.minReplicas: 0 → (none)"),
        ("minReplicas: 0", "minReplicas: 0\n    maxReplicas: 3", "spec.predictor.maxReplicas: (none) → 3"),
        ('value: "2"', "value: x", "spec.predictor.containers.main.env.B.value: 2 → x"),
        ("{name: B", "{name: C", 'spec.predictor.containers.main.env.C: (none) → {"name": "C", "value": "2"}'),
        ("team: a", "example.com/team: b", 'metadata.annotations["example.com/team"]: (none) → b'),
    ],
)  # fmt: skip
def test_a_changed_field_is_shown_with_both_values(old: str, new: str, change: str) -> None:
    assert change in changes(old, new)


def test_equal_documents_and_what_a_deploy_records_are_no_change() -> None:
    assert changes("", "") == []
    assert changes('"local"', '"docker"') == []


def test_a_first_release_changes_nothing() -> None:
    assert changed_fields(None, release(DOCUMENT)) == []


def test_long_values_are_cut() -> None:
    (line,) = changes("team: a", f"team: {'x' * 500}")
    assert len(line) < 120
    assert line.endswith("…")


def test_changed_files_of_a_model_are_named() -> None:
    def pinned(digest: str) -> str:
        pins = f'{{"./model": {{"digest": "sha256:{digest}", "files": {{"model.py": "{digest}", "a.txt": "1"}}}}}}'
        return DOCUMENT.replace("team: a", f"pilotlight.dev/model-pins: '{pins}'")

    (change,) = changed_fields(release(pinned("1")), release(pinned("2")))
    assert str(change) == "model ./model: ~ model.py"
