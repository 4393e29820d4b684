"""Annotations of pods as quantities."""

from pilotlight.k8s.quantities import gpu_sharing


def test_annotations_say_how_a_pod_shares_its_gpus() -> None:
    alone = {"gpu_memory": None, "gpu_pinned": False, "gpu_residence": None, "park": False}
    assert gpu_sharing({}) == alone
    written = {"gpu-memory": "8Gi", "gpu-pinned": "true", "gpu-residence": "1m30s", "park": "true"}
    shared = gpu_sharing({f"pilotlight.dev/{name}": value for name, value in written.items()})
    assert shared == {"gpu_memory": 8 << 30, "gpu_pinned": True, "gpu_residence": 90.0, "park": True}
    assert gpu_sharing({"pilotlight.dev/gpu-memory": "auto"}) == alone | {"gpu_memory": 0}
