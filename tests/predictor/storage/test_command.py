import json
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from pilotlight.contract import ENV_PROGRAM
from pilotlight_predictor.storage.command import main
from pilotlight_predictor.storage.fetcher import fetch_into
from pilotlight_predictor.storage.store_interface import FetchOptions

ZEROS = "0" * 64
FIVE_BYTES = {"bytes": 5, "files": 1, "copied_bytes": 5}


def _files(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())


def test_a_prefix_fills_the_directory_and_its_path_is_printed(
    s3_bucket: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    s3_bucket.put("iris/config.pbtxt", b"c")
    s3_bucket.put("iris/1/model.onnx", b"m")
    assert main([s3_bucket.uri("iris"), str(tmp_path / "models")]) == 0
    assert Path(capsys.readouterr().out.strip()) == tmp_path / "models"
    assert _files(tmp_path / "models") == [".pilotlight-source.json", "1/model.onnx", "config.pbtxt"]


def test_json_says_what_came(web: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    web.files["/m.onnx"] = b"12345"
    assert main([web.url("/m.onnx?sig=s3cr3t"), str(tmp_path), "--size", "5", "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"uri": web.url("/m.onnx?***"), "path": str(tmp_path / "m.onnx"), **FIVE_BYTES}


def test_json_of_a_second_run_says_what_is_there_and_that_nothing_was_copied(
    s3_bucket: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    s3_bucket.put("iris/config.pbtxt", b"cc")
    s3_bucket.put("iris/1/model.onnx", b"mmm")
    (tmp_path / "mine.txt").write_text("not from the store")
    for copied in (5, 0):
        assert main([s3_bucket.uri("iris"), str(tmp_path), "-o", "json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert (shown["bytes"], shown["files"], shown["copied_bytes"]) == (5, 2, copied)


@pytest.mark.parametrize("name", ["text", "table"])
def test_a_table_is_the_plain_path(name: str, web: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    web.files["/m.onnx"] = b"12345"
    assert main([web.url("/m.onnx"), str(tmp_path), "-o", name]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'm.onnx'}\n"


def test_an_interrupt_ends_it_at_once_with_one_line_even_while_the_server_stalls(
    web: Any, tmp_path: Path, content: Any
) -> None:
    web.files["/m.bin"] = content(1 << 20)
    web.hold_after = 1 << 16
    command = [sys.executable, "-m", "pilotlight_predictor", "fetch", web.url("/m.bin"), str(tmp_path / "there")]
    # A shell's background job ignores interrupts, and so would whatever it starts: the child is a foreground one.
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    )
    deadline = monotonic() + 60
    while not web.held:
        assert process.poll() is None
        assert monotonic() < deadline
        sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=25)  # a server that is silent is given up after 30
    web.released.set()
    assert process.returncode == 130
    *progress, last = said.splitlines()  # a start that took long tells how far it is
    assert last == "interrupted; run the same command to resume"
    assert all("MiB" in line for line in progress)


def test_a_signal_handler_does_not_outlive_the_fetch(web: Any, tmp_path: Path) -> None:
    web.files["/m.onnx"] = b"12345"
    before = signal.getsignal(signal.SIGINT)
    assert main([web.url("/m.onnx"), str(tmp_path)]) == 0
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["/missing.onnx"], 3, "the server returned 404"),
        (["/m.onnx", "--sha256", ZEROS], 1, "must be 0000"),
        (["/m.onnx", "--sha256", "abc"], 1, "must be 64 hexadecimal digits"),
        (["/m.onnx", "--size", "4"], 1, "must be 4"),
        (["/m.onnx", "--concurrency", "0"], 2, "must be at least 1"),
        (["/m.onnx", "--nonsense"], 2, "unrecognized arguments"),
    ],
)
def test_exit_codes_tell_failures_apart(
    web: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    web.files["/m.onnx"] = b"12345"
    assert main([web.url(arguments[0]), str(tmp_path / "models"), *arguments[1:]]) == code
    assert message in capsys.readouterr().err


def test_a_missing_argument_is_an_error_with_the_command_that_helps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(ENV_PROGRAM, "platformctl fetch")
    assert main(["x"]) == 2
    assert capsys.readouterr().err == "error: the following arguments are required: DIR\n  platformctl fetch --help\n"


def test_a_second_run_downloads_nothing(web: Any, tmp_path: Path) -> None:
    web.files["/m.onnx"] = b"12345"
    for _ in range(2):
        assert main([web.url("/m.onnx"), str(tmp_path)]) == 0
    assert web.body_bytes == 5


def test_a_changed_model_leaves_no_stale_file(s3_bucket: Any, tmp_path: Path, options: FetchOptions) -> None:
    s3_bucket.put("iris/old.bin", b"o")
    s3_bucket.put("iris/kept.bin", b"k")
    (tmp_path / "mine.txt").write_text("not from the store")
    fetch_into(s3_bucket.uri("iris"), tmp_path, options=options)
    s3_bucket.delete("iris/old.bin")
    s3_bucket.put("iris/new.bin", b"n")
    fetch_into(s3_bucket.uri("iris"), tmp_path, options=options)
    assert _files(tmp_path) == [".pilotlight-source.json", "kept.bin", "mine.txt", "new.bin"]


def test_a_file_that_was_deleted_is_brought_back(web: Any, tmp_path: Path, options: FetchOptions) -> None:
    web.files["/m.onnx"] = b"12345"
    fetch_into(web.url("/m.onnx"), tmp_path, options=options).unlink()
    assert fetch_into(web.url("/m.onnx"), tmp_path, options=options).read_bytes() == b"12345"


def test_with_a_cache_two_directories_link_to_one_copy(
    s3_bucket: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    s3_bucket.put("iris/config.pbtxt", b"cc")
    s3_bucket.put("iris/1/model.onnx", b"mmm")
    options = ["--cache", str(tmp_path / "cache"), "-o", "json"]
    for name, copied in (("first", 5), ("second", 0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").symlink_to(tmp_path)
        assert main([*options, s3_bucket.uri("iris"), str(tmp_path / name)]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert (shown["bytes"], shown["files"], shown["copied_bytes"]) == (5, 2, copied)
        assert (tmp_path / name / "1" / "model.onnx").read_bytes() == b"mmm"
    inodes = {(tmp_path / name / "1" / "model.onnx").stat().st_ino for name in ("first", "second")}
    assert len(inodes) == 1
    s3_bucket.put("iris/1/model.onnx", b"new")
    s3_bucket.delete("iris/config.pbtxt")
    assert main([*options, s3_bucket.uri("iris"), str(tmp_path / "second")]) == 0
    assert (tmp_path / "second" / "1" / "model.onnx").read_bytes() == b"new"
    assert (tmp_path / "first" / "1" / "model.onnx").read_bytes() == b"mmm"  # another revision may serve it
    assert sorted(path.name for path in (tmp_path / "second").iterdir()) == ["1", "mine"]


def test_with_a_cache_a_single_file_is_a_link(web: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    web.files["/m.onnx"] = b"12345"
    assert main(["--cache", str(tmp_path / "cache"), web.url("/m.onnx"), str(tmp_path / "dir")]) == 0
    assert Path(capsys.readouterr().out.strip()).read_bytes() == b"12345"
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "m.onnx").write_text("a file of others")
    assert main(["--cache", str(tmp_path / "cache"), web.url("/m.onnx"), str(tmp_path / "taken")]) == 1
    assert "cannot be linked" in capsys.readouterr().err


def test_an_archive_is_unpacked_into_the_directory(web: Any, tmp_path: Path, options: FetchOptions) -> None:
    import io
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as bundle:
        bundle.writestr("1/model.onnx", b"m")
    web.files["/iris.zip"] = buffer.getvalue()
    assert fetch_into(web.url("/iris.zip"), tmp_path / "models", options=options) == tmp_path / "models"
    assert (tmp_path / "models/1/model.onnx").read_bytes() == b"m"


def test_a_local_directory_is_copied(tmp_path: Path, options: FetchOptions) -> None:
    (tmp_path / "from/1").mkdir(parents=True)
    (tmp_path / "from/1/model.onnx").write_bytes(b"m")
    fetch_into(f"file://{tmp_path}/from", tmp_path / "to", options=options)
    assert (tmp_path / "to/1/model.onnx").read_bytes() == b"m"
    assert (tmp_path / "from/1/model.onnx").exists()


def test_progress_goes_into_a_log_every_few_seconds_and_not_more(
    web: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.files["/m.onnx"] = content(200_000)
    monkeypatch.setattr("pilotlight_predictor.storage.progress_line.LOG_S", 3600.0)
    main([web.url("/m.onnx"), str(tmp_path / "a")])
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("pilotlight_predictor.storage.progress_line.LOG_S", 0.0)
    main([web.url("/m.onnx"), str(tmp_path / "b")])
    assert "0.2 of 0.2 MiB, 1 of 1 files" in capsys.readouterr().err


def test_an_interrupted_container_goes_on(
    web: Any, tmp_path: Path, options: FetchOptions, content: Any, killed_midway: Any
) -> None:
    web.files["/m.bin"] = content(16 * 65536)
    noted = killed_midway("fetch_into", web.url("/m.bin"), tmp_path)
    assert fetch_into(web.url("/m.bin"), tmp_path, options=options).read_bytes() == content(16 * 65536)
    assert len(web.requests) == 1 + 16 - noted
    assert _files(tmp_path) == [".pilotlight-source.json", "m.bin"]
