"""`platformctl audit verify` prints the head, or the first bad line with the reason and exit code 1."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pilotlight.errors import PlatformError
from pilotlight.wire.request_log.audit_log import AuditLog, files_of
from platformctl.commands.platform.audit import audit


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PILOTLIGHT_HOME", str(tmp_path))
    return tmp_path / "audit"


def failure(*words: str) -> PlatformError:
    error = CliRunner().invoke(audit, ["verify", *words]).exception
    assert isinstance(error, PlatformError)
    assert error.exit_code == 1
    return error


def test_it_prints_the_head_and_finds_the_first_bad_line(folder: Path) -> None:
    assert "there is no audit log" in str(failure())
    log = AuditLog(folder)
    heads = [log.append({"event": "request", "caller": name}) for name in ("ana", "bo", "cy")]
    result = CliRunner().invoke(audit, ["verify", "-o", "json", "--expect-head", heads[1].hash])
    assert json.loads(result.output) == {"records": 3, "seq": 3, "head": heads[2].hash}
    (path,) = files_of(folder)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]))
    assert CliRunner().invoke(audit, ["verify", str(path)]).output.startswith("2 records, head ")
    assert "records at the end were removed" in str(failure("--expect-head", heads[2].hash))
    path.write_bytes(lines[0] + lines[1].replace(b"bo", b"al") + lines[2])
    assert str(failure()) == f"{path}:2: was changed: its hash is not that of its content"
