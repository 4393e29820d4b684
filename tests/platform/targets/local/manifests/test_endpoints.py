"""Files by which a router component learns of its replicas."""

from pathlib import Path

import msgspec

from pilotlight.gateway.routing_table import Backend, Replica, Route
from pilotlight.targets.local.manifests.service_discovery import EndpointFiles, endpoints_of


def route(name: str, *replicas: Replica, internal: bool = True) -> Route:
    return Route("default", name, (Backend(f"{name}-1", name, 100, replicas),), internal=internal)


def read(folder: Path, name: str) -> tuple[Replica, ...]:
    return msgspec.json.decode((folder / "default" / f"{name}.json").read_bytes(), type=tuple[Replica, ...])


A, B = Replica("a", 1001), Replica("b", 1002, grpc_port=1003)


def test_only_what_another_component_asks_has_a_file() -> None:
    found = endpoints_of([route("split", A, internal=False), route("split-engine", A, B)])
    assert found == {("default", "split-engine"): (A, B)}


def test_files_follow_the_table_and_go_with_their_workload(tmp_path: Path) -> None:
    endpoints = EndpointFiles(tmp_path / "endpoints")
    endpoints.update([route("split-engine", A)])
    assert read(tmp_path / "endpoints", "split-engine") == (A,)
    endpoints.update([route("split-engine", A, B)])
    assert read(tmp_path / "endpoints", "split-engine") == (A, B)
    endpoints.update([route("split-engine")])
    assert read(tmp_path / "endpoints", "split-engine") == ()
    endpoints.update([])
    assert list((tmp_path / "endpoints").rglob("*.json")) == []


def test_an_unchanged_set_is_not_written_again(tmp_path: Path) -> None:
    endpoints = EndpointFiles(tmp_path)
    endpoints.update([route("split-engine", A)])
    before = (tmp_path / "default" / "split-engine.json").stat().st_ino
    endpoints.update([route("split-engine", A)])
    assert (tmp_path / "default" / "split-engine.json").stat().st_ino == before


def test_what_an_earlier_control_process_left_is_put_right(tmp_path: Path) -> None:
    EndpointFiles(tmp_path).update([route("gone-engine", A), route("split-engine", A)])
    EndpointFiles(tmp_path).update([route("split-engine", B)])
    assert [file.name for file in tmp_path.rglob("*")] == ["default", "split-engine.json"]
    assert read(tmp_path, "split-engine") == (B,)


def test_a_folder_that_cannot_be_written_stops_nothing_and_is_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "endpoints"
    folder.write_text("in the way")
    endpoints = EndpointFiles(folder)
    endpoints.update([route("split-engine", A)])
    folder.unlink()
    endpoints.update([route("split-engine", A)])
    assert read(folder, "split-engine") == (A,)
