"""`--with helm`: one release per service, whole, and only where helm has something to say."""

from pathlib import Path

import pytest

from pilotlight.errors import PlatformError, UsageError
from pilotlight.plan.types import Capabilities
from pilotlight.release import apply
from pilotlight.release.plan_and_render import Sources, read
from pilotlight.render import values_of
from pilotlight.targets.local.client import LocalTarget
from pilotlight.targets.local.control_process_launcher import Address
from platformctl.services import helm

SERVICE = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: iris, namespace: lab}
spec:
  predictor:
    model: {modelFormat: {name: onnx}, storageUri: s3://models/iris}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: lab}
data: {a: b}
"""


def prepared(folder: Path) -> tuple[apply.ReleaseRequest, apply.PreparedRelease]:
    (folder / "service.yaml").write_text(SERVICE)
    wanted = apply.ReleaseRequest(read(Sources([str(folder)])), Capabilities())
    (one,), _ = apply.prepare(wanted, None)
    return wanted, one


def test_a_release_takes_along_what_came_beside_the_document(tmp_path: Path) -> None:
    _, one = prepared(tmp_path)
    made = helm.values(one)
    assert [each["kind"] for each in made["objects"]] == ["ConfigMap", "Route"]
    assert {**made, "objects": []} == {**values_of(one.plan), "objects": []}


def test_helm_is_for_clusters(tmp_path: Path) -> None:
    wanted, one = prepared(tmp_path)
    with pytest.raises(UsageError, match="the target is local"):
        helm.apply(wanted, [one], LocalTarget(Address(0, 0, "", 0, 0)))


def test_what_helm_says_is_told_and_who_owns_the_objects_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, one = prepared(tmp_path)
    program = tmp_path / "helm"
    program.write_text("#!/bin/sh\necho 'Error: invalid ownership metadata' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PlatformError, match="invalid ownership metadata") as told:
        helm.template(one.plan)
    assert "platformctl delete iris" in told.value.hint
