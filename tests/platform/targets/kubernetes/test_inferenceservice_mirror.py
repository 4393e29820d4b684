"""The InferenceService object of a service: the document as it was deployed."""

from pilotlight.targets.kubernetes.inferenceservice_mirror import is_managed, to_object

DOCUMENT = """
apiVersion: ome.io/v1beta1
kind: InferenceService
metadata:
  name: llama
  namespace: chat
  labels: {team: a}
  annotations: {example.com/note: theirs, pilotlight.dev/planned-with: ours}
spec: {model: {name: llama-3-8b}, engine: {minReplicas: 0}}
"""


def test_the_kept_object_is_the_document_with_the_labels_of_the_service() -> None:
    kept = to_object(DOCUMENT)
    assert kept["spec"] == {"model": {"name": "llama-3-8b"}, "engine": {"minReplicas": 0}}
    assert kept["metadata"]["labels"]["team"] == "a"
    assert kept["metadata"]["annotations"] == {"example.com/note": "theirs"}
    assert kept["metadata"]["labels"]["serving.ome.io/inferenceservice"] == "llama"
    assert is_managed(kept)


def test_an_object_that_somebody_applied_by_hand_is_not_ours() -> None:
    assert not is_managed({"metadata": {"labels": {"pilotlight.dev/service": "llama"}}})
    assert not is_managed({"metadata": {}})
