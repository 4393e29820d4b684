"""The audit log is one chain however many processes write it; every change but a cut at its end shows."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.eventually import eventually

from pilotlight.wire.request_log.audit_log import (
    FILE,
    AuditLog,
    BrokenChain,
    Head,
    encode,
    files_of,
    verify,
)


def lines_of(folder: Path) -> list[bytes]:
    return [line for path in files_of(folder) for line in path.read_bytes().splitlines(keepends=True)]


def chain(count: int) -> list[bytes]:
    head, lines = Head(), []
    for number in range(count):
        line, head = encode({"event": "request", "n": number}, head, 0.0)
        lines.append(line)
    return lines


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_changed_removed_reordered_and_inserted_lines_are_found(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lines = chain(6)
    at = data.draw(st.integers(0, 5))
    kind = data.draw(st.sampled_from(["change", "remove", "swap", "repeat", "forge"]))
    if kind == "change":
        column = data.draw(st.integers(0, len(lines[at]) - 2))
        byte = data.draw(st.integers(32, 126).filter(lambda byte: byte != lines[at][column]))
        lines[at] = lines[at][:column] + bytes([byte]) + lines[at][column + 1 :]
    elif kind == "remove":
        del lines[min(at, 4)]  # the last one alone shows only with the head
    elif kind == "swap":
        other = (at + 1) % 6
        lines[at], lines[other] = lines[other], lines[at]
    elif kind == "repeat":
        lines.insert(at, lines[at])
    else:  # a valid record of the right number, with another content
        lines[min(at, 4)] = encode({"event": "forged"}, Head(min(at, 4)), 0.0)[0]
        at = min(at, 4)
    path = tmp_path_factory.mktemp("chain") / FILE
    path.write_bytes(b"".join(lines))
    with pytest.raises(BrokenChain) as caught:
        verify([path])
    number = int(str(caught.value).removeprefix(f"{path}:").partition(":")[0])
    assert number <= at + 2


def test_the_chain_continues_over_writers_and_rotated_files(tmp_path: Path) -> None:
    one, two = AuditLog(tmp_path, max_bytes=600), AuditLog(tmp_path, max_bytes=600)
    for number in range(8):
        head = (one, two)[number % 2].append({"event": "request", "n": number}, sync=number == 3)
    files = files_of(tmp_path)
    assert len(files) > 2
    assert verify(files, expected=head.hash) == (8, head, (), True)
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)
    with pytest.raises(BrokenChain, match="those before it are missing; add their file, or use --after"):
        verify(files[1:])
    last = json.loads(files[0].read_bytes().splitlines()[-1])["hash"]
    assert verify(files[1:], last).head == head
    files[-1].write_bytes(b"")  # a crash right after a rotation
    assert verify(files_of(tmp_path)).head.seq < 8
    assert AuditLog(tmp_path).append({}).seq == verify(files_of(tmp_path)).head.seq


@pytest.mark.parametrize("torn", [b'{"seq":3,"ti', b"\x00" * 40, b'{"seq":3}\n'])
def test_an_incomplete_last_line_is_replaced_by_a_record_of_it(tmp_path: Path, torn: bytes) -> None:
    log = AuditLog(tmp_path)
    for _ in range(2):
        log.append({"event": "request"})
    with (tmp_path / FILE).open("ab") as file:
        file.write(torn)
    with pytest.raises(BrokenChain, match=rf"{FILE}:3: is not a complete record"):
        verify(files_of(tmp_path))
    assert AuditLog(tmp_path).append({"event": "request"}).seq == 4
    checked = verify(files_of(tmp_path))
    assert (checked.records, checked.notes) == (
        4, (f"{tmp_path / FILE}:3: {len(torn)} bytes of an incomplete line were discarded",)
    )  # fmt: skip


WRITER = """
import sys
from pathlib import Path
from pilotlight.wire.request_log.audit_log import AuditLog
log = AuditLog(Path(sys.argv[1]), max_bytes=20000)
while True:
    print(log.append({"event": "request"}).hash, flush=True)
"""


def test_writers_that_are_killed_lose_nothing_that_they_have_appended(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    outputs = [tmp_path / f"out-{number}" for number in range(2)]
    writers = []
    for output in outputs:
        with output.open("wb") as stdout:
            writers.append(subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=stdout))
    try:
        eventually(lambda: all(output.stat().st_size > 65 * 200 for output in outputs), "both write")
    finally:
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
    acknowledged = {line for output in outputs for line in output.read_text().splitlines() if len(line) == 64}
    AuditLog(folder).append({"event": "request"})
    verify(files_of(folder))
    stored = {json.loads(line)["hash"] for line in lines_of(folder)}
    assert len(acknowledged) > 400
    assert acknowledged <= stored
