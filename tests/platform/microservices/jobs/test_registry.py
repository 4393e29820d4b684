"""The registry file: whole at every moment, changed by many at once, closed to others, kind to what they wrote."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pilotlight.errors import PlatformError
from pilotlight.microservices.registry.records import Entry
from pilotlight.microservices.registry.registry_file import DEFAULT_PATH, ENV_PATH, Registry, registry

PROCESSES, EACH = 8, 12
WORK = """
import sys
import time
from pathlib import Path
from pilotlight.microservices.registry.records import Entry
from pilotlight.microservices.registry.registry_file import Registry

held, name, count = Registry(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
for number in range(count):
    held.add(f"{name}-{number}", Entry("docker", "cosmos-rl", "http://localhost:8080", f"2026-01-01T00:00:{number:02}"))
    assert f"{name}-{number}" in held.read().entries
    if number % 2:
        assert held.remove(f"{name}-{number}")
"""


def entry(at: str = "2026-01-01", **more: object) -> Entry:
    return Entry("docker", "cosmos-rl", "http://localhost:8080", at, **more)  # type: ignore[arg-type]


@pytest.fixture
def held(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "state.json")


def test_many_processes_at_once_lose_no_entry(held: Registry) -> None:
    command = [sys.executable, "-c", WORK, str(held.path)]
    running = [subprocess.Popen([*command, f"p{number}", str(EACH)]) for number in range(PROCESSES)]
    reads = 0
    while any(each.poll() is None for each in running):
        held.read()  # raises where half a file could be seen
        reads += 1
        time.sleep(0.002)  # the writers need the processor too
    assert [each.returncode for each in running] == [0] * PROCESSES
    kept = {f"p{process}-{number}" for process in range(PROCESSES) for number in range(0, EACH, 2)}
    assert set(held.read().entries) == kept
    assert held.read().latest in kept
    assert reads
    assert [path.name for path in held.path.parent.iterdir() if path.suffix not in (".json", ".lock")] == []


def test_it_lies_where_scripts_look_unless_a_setting_moves_it(tmp_path: Path) -> None:
    assert str(registry({}).path) == DEFAULT_PATH == "/tmp/tao-inf-ms-state.json"
    assert registry({ENV_PATH: str(tmp_path / "other")}).path == tmp_path / "other"


def test_entries_hold_the_fields_that_scripts_read(held: Registry) -> None:
    held.add("a", entry(host_port=8081, platform_job_id="x", instance_id="i", namespace="n"))
    document = json.loads(held.path.read_text())
    assert document["latest"] == "a"
    assert document["a"] == {
        "platform": "local-docker", "network_arch": "cosmos-rl", "host_url": "http://localhost:8080", "host_port": 8081,
        "platform_job_id": "x", "instance_id": "i", "namespace": "n", "started_at": "2026-01-01",
    }  # fmt: skip


def test_what_the_api_started_is_never_the_latest(held: Registry) -> None:
    held.add("org", entry("2026-01-03", closed=True))
    assert held.read().latest == ""
    held.add("a", entry("2026-01-01"))
    held.add("b", entry("2026-01-02"))
    held.add("org2", entry("2026-01-04", closed=True))
    assert held.read().latest == "b"
    held.remove("b")
    assert held.read().latest == "a"
    held.remove("a")
    assert held.read().latest == ""
    assert held.read().entries["org"].closed


def test_a_field_without_a_value_is_there_all_the_same(held: Registry) -> None:
    held.add("a", entry())
    written = json.loads(held.path.read_text())["a"]
    assert {name for name, value in written.items() if value is None} == {
        "host_port", "platform_job_id", "instance_id", "namespace",
    }  # fmt: skip
    assert held.read().entries["a"] == entry()


def test_latest_passes_to_the_one_started_last_of_those_that_stay(held: Registry) -> None:
    for name, at in (("b", "2026-01-02"), ("a", "2026-01-01"), ("c", "2026-01-03")):
        held.add(name, entry(at))
    assert held.read().latest == "c"
    held.remove("a")
    assert held.read().latest == "c"
    held.remove("c")
    assert held.read().latest == "b"
    held.remove("b")
    assert json.loads(held.path.read_text()) == {}
    assert not held.remove("b")


def test_what_others_wrote_stays_as_it_is(held: Registry) -> None:
    foreign = {"platform": "local-docker", "network_arch": "vila", "host_url": "u", "started_at": 12.5, "note": [1]}
    held.path.write_text(json.dumps({"theirs": foreign, "latest": "theirs", "remark": "kept"}))
    held.path.chmod(0o600)
    assert held.read().entries["theirs"].started_at == "12.5"
    held.add("ours", entry())
    held.remove("ours")
    assert json.loads(held.path.read_text()) == {"theirs": foreign, "remark": "kept", "latest": "theirs"}


def test_it_can_be_read_by_its_user_alone_whatever_the_umask(held: Registry) -> None:
    before = os.umask(0)
    try:
        held.add("a", entry())
    finally:
        os.umask(before)
    assert held.path.stat().st_mode & 0o777 == 0o600


def test_a_link_is_not_followed(held: Registry, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("{}")
    held.path.symlink_to(tmp_path / "target")
    for attempt in (held.read, lambda: held.add("a", entry())):
        with pytest.raises(PlatformError, match=r"state\.json cannot be opened"):
            attempt()
    assert (tmp_path / "target").read_text() == "{}"


def test_a_lock_that_is_a_link_is_not_followed_either(held: Registry, tmp_path: Path) -> None:
    (tmp_path / "state.json.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PlatformError, match="lock cannot be opened"):
        held.add("a", entry())
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(("text", "reason"), [("{", "is not JSON"), ("[]", "is not an object")])
def test_a_file_that_is_something_else_is_left_and_told(held: Registry, text: str, reason: str) -> None:
    held.path.write_text(text)
    with pytest.raises(PlatformError, match=reason) as refused:
        held.add("a", entry())
    assert ENV_PATH in refused.value.hint
    assert held.path.read_text() == text


def test_a_file_that_others_may_write_is_refused(held: Registry) -> None:
    held.path.write_text("{}")
    held.path.chmod(0o666)
    with pytest.raises(PlatformError, match="is writable by others"):
        held.read()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(held: Registry) -> None:
    held.path.write_text("{}")
    os.chown(held.path, 12345, 12345)
    with pytest.raises(PlatformError, match="belongs to another user"):
        held.read()
