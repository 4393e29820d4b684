"""Fields set in the text of a document: comments, order and quotes stay."""

import pytest

from pilotlight.spec.text_edit import CannotEdit, set_field

TEXT = """\
# Ours.
metadata:
  name: iris   # the flower
  labels: {team: lab}
spec:
  predictor:
    # Never cold.
    minReplicas: "1" # one
    model: {modelFormat: {name: onnx}}
---
metadata: {name: other}
spec: {predictor: {minReplicas: 3}}
"""


def test_a_field_is_replaced_where_it_is() -> None:
    edited = set_field(TEXT, "iris", "spec.predictor.minReplicas", "0")
    assert edited == TEXT.replace('minReplicas: "1" # one', "minReplicas: 0 # one")


def test_a_missing_field_joins_its_parent() -> None:
    edited = set_field(TEXT, "iris", "spec.predictor.scaleTarget", "8")
    assert edited == TEXT.replace('    minReplicas: "1"', '    scaleTarget: 8\n    minReplicas: "1"')
    assert "{scaleTarget: 8, minReplicas: 3}" in set_field(TEXT, "other", "spec.predictor.scaleTarget", "8")


def test_missing_parents_are_added() -> None:
    path = 'metadata.annotations["autoscaling.knative.dev/window"]'
    edited = set_field(TEXT, "iris", path, "30s")
    assert "metadata:\n  annotations:\n    autoscaling.knative.dev/window: 30s\n  name: iris   # the flower\n" in edited
    flow = set_field(TEXT, "other", path, "30s")
    assert "metadata: {annotations: {autoscaling.knative.dev/window: 30s}, name: other}" in flow


@pytest.mark.parametrize("path", ["spec.predictor.model", "metadata.name.first", "spec[0]", "metadata..name"])
def test_a_path_without_a_place_is_refused(path: str) -> None:
    with pytest.raises(CannotEdit):
        set_field(TEXT, "iris", path, "1")


def test_a_document_that_is_not_there_is_refused() -> None:
    with pytest.raises(CannotEdit, match="no document called rose"):
        set_field(TEXT, "rose", "spec.predictor.minReplicas", "1")
