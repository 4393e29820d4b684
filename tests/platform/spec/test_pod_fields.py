"""Kubernetes' records: the committed data is what its client's models say, and is there at once."""

import subprocess
import sys
from typing import Any

import pytest
from schemas import generate_pod_fields

from pilotlight.spec import pod_fields
from pilotlight.spec.field_types import ListOf, MapOf, Record, RecordRef, Type

client = pytest.importorskip("kubernetes.client.models", reason="needs the extra kubernetes")
# From its version 36 on the client is made of pydantic models, which do not carry what the generator reads.
PINNED = not hasattr(client.V1PodSpec, "model_fields")


@pytest.mark.skipif(not PINNED, reason="the client is newer than the pinned one")
def test_the_committed_fields_are_what_the_client_says() -> None:
    import kubernetes

    text = generate_pod_fields.as_text(generate_pod_fields.generate(), kubernetes.__version__)
    assert generate_pod_fields.TARGET.read_text() == text


@pytest.mark.skipif(PINNED, reason="the client is the pinned one, which is compared in full")
def test_a_newer_client_knows_every_field_that_is_committed() -> None:
    unknown = []
    for name, fields in pod_fields._records().items():
        model: Any = next(m for p in ("V1", "V2", "CoreV1") if (m := getattr(client, p + name, None)) is not None)
        known = set(model.attribute_map.values())
        unknown += [f"{name}.{field}" for field in fields if field.rstrip("!") not in known]
    assert not unknown


def test_every_correction_is_of_a_field_that_exists() -> None:
    records = pod_fields._records()
    for path in {*generate_pod_fields.NARROWED, *generate_pod_fields.OPTIONAL}:
        name, _, field = path.partition(".")
        assert field in {each.rstrip("!") for each in records[name]}, path


def test_every_record_can_be_built_and_reaches_only_records_that_exist() -> None:
    def inner(kind: Type) -> Type:
        return inner(kind.item) if isinstance(kind, ListOf) else inner(kind.value) if isinstance(kind, MapOf) else kind

    for name in pod_fields._records():
        for field in pod_fields.record(name).fields.values():
            kind = inner(field.type)
            assert not isinstance(kind, RecordRef) or isinstance(kind.resolve(kind.name), Record)


def test_the_first_pod_spec_is_there_within_twenty_milliseconds() -> None:
    code = (
        "import time; from pilotlight.spec import pod_fields as core_fields; s = time.process_time();"
        "core_fields.record('PodSpec'); print(time.process_time() - s)"
    )
    took = [float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(3)]
    assert min(took) < 0.02
