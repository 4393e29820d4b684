"""Comparing manifests object by object, and writing them as YAML that every reader takes the same way."""

import copy
from typing import Any

import pytest
import yaml
from tests.platform.render.render_plans import raw_latency, serverless

from pilotlight.k8s.manifest import Manifest, diff, to_yaml
from pilotlight.render import render


def config_map(name: str = "a", **data: Any) -> Manifest:
    return Manifest({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})


def changed(manifest: Manifest, **metadata: Any) -> Manifest:
    document = copy.deepcopy(dict(manifest.document))
    return Manifest({**document, "metadata": {**document["metadata"], **metadata}})


def test_the_same_manifests_have_no_difference() -> None:
    assert diff(render(raw_latency()), render(raw_latency())) == []


def test_an_object_is_added_or_removed_whole() -> None:
    (added,) = diff([], [config_map(x="1")])
    (removed,) = diff([config_map(x="1")], [])
    assert (added.kind, removed.kind) == ("added", "removed")
    assert added.key == removed.key == ("", "ConfigMap", "", "a")
    assert added.lines[:2] == ("--- old ConfigMap/a", "+++ new ConfigMap/a")
    assert "+  x: '1'" in added.lines
    assert "-  x: '1'" in removed.lines


def test_a_change_shows_only_the_lines_that_differ() -> None:
    (change,) = diff([config_map(x="1", z="same")], [config_map(x="2", z="same")])
    assert change.kind == "changed"
    assert [line for line in change.lines[2:] if line[0] in "+-"] == ["-  x: '1'", "+  x: '2'"]


def test_the_order_of_keys_is_no_difference_and_hides_none() -> None:
    assert diff([config_map(x="1", z="2")], [config_map(z="2", x="1")]) == []
    (change,) = diff([config_map(x="1", z="2")], [config_map(z="3", x="1")])
    assert [line for line in change.lines[2:] if line[0] in "+-"] == ["-  z: '2'", "+  z: '3'"]


def test_another_version_of_the_same_kind_is_a_change_of_one_object() -> None:
    old = Manifest({**config_map().document, "apiVersion": "keda.sh/v1alpha1"})
    new = Manifest({**config_map().document, "apiVersion": "keda.sh/v1"})
    assert [change.kind for change in diff([old], [new])] == ["changed"]


@pytest.mark.parametrize(
    "noise",
    [
        {"resourceVersion": "7", "uid": "u", "generation": 3, "creationTimestamp": "2026-01-01T00:00:00Z"},
        {"managedFields": [{"manager": "pilotlight"}]},
        {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}},
        {"annotations": {"deployment.kubernetes.io/revision": "4"}},
    ],
)
def test_what_only_a_server_writes_is_no_difference(noise: dict[str, Any]) -> None:
    live = changed(config_map(x="1"), **noise)
    assert diff([Manifest({**live.document, "status": {"ready": True}})], [config_map(x="1")]) == []


def test_what_a_person_wrote_is_one() -> None:
    assert diff([changed(config_map(), annotations={"note": "mine"})], [config_map()])


def test_changes_come_in_the_order_of_applying() -> None:
    changes = diff(render(raw_latency()), render(serverless()))
    kinds = [change.key[1] for change in changes]
    assert kinds.index("NetworkPolicy") < kinds.index("Deployment") < kinds.index("HTTPRoute")
    assert {change.kind for change in changes} == {"added", "removed", "changed"}


@pytest.mark.parametrize("text", ["1e5", "0o17", "1_000", "12:30:45", "y", "N", "+1", ".5", "0x1f", "1Gi", "300s"])
def test_a_string_that_some_reader_takes_for_another_type_is_quoted(text: str) -> None:
    assert f"x: '{text}'" in to_yaml([config_map(x=text)])


def test_text_over_several_lines_stays_readable() -> None:
    assert "x: |\n    first\n    second\n" in to_yaml([config_map(x="first\nsecond\n")])


def test_what_occurs_twice_is_written_twice() -> None:
    shared = {"k": "v"}
    text = to_yaml([config_map(x=shared, y=shared)])
    assert "&" not in text
    assert yaml.safe_load(text)["data"] == {"x": shared, "y": shared}
