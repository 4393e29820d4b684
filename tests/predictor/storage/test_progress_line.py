import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pilotlight_predictor.storage import progress_line
from pilotlight_predictor.storage.progress_line import ProgressLine, progress_text
from pilotlight_predictor.storage.store_interface import MIB, Progress


def test_progress_reads_without_a_total() -> None:
    assert progress_text(Progress(3 * MIB, -1, 0, 1), 2.0) == "3.0 MiB, 0 of 1 files, 1.5 MiB/s"


def test_a_terminal_has_a_bar_which_goes_with_the_last_byte(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_line, "TERMINAL_S", 0.0)
    show = ProgressLine(True, 0.0)
    show(Progress(MIB, 4 * MIB, 0, 1))
    assert capsys.readouterr().err.startswith(f"\x1b[K[{'#' * 6}{'-' * 18}] 1.0 of 4.0 MiB, 0 of 1 files, ")
    show(Progress(4 * MIB, 4 * MIB, 0, 1))
    show(Progress(4 * MIB, 4 * MIB, 1, 1))
    assert capsys.readouterr().err == "\x1b[K"


def test_a_server_on_a_terminal_shows_the_download_of_its_model(web: Any, tmp_path: Path, content: Any) -> None:
    web.files["/m.onnx"] = content(1 << 20)
    web.hold_after = 1 << 16
    own, terminal = pty.openpty()
    ports = ["--host", "127.0.0.1", "--http-port", "0", "--metrics-port", "0", "--grpc-port", "-1"]
    flags = ["--model-path", web.url("/m.onnx"), "--cache-dir", str(tmp_path), "--exit-on-error", *ports]
    command = [sys.executable, "-m", "pilotlight_predictor", *flags]
    with subprocess.Popen(command, stderr=terminal) as server:
        os.close(terminal)
        shown = b""
        try:
            while b" of 1.0 MiB, 0 of 1 files, " not in shown:
                shown += os.read(own, 4096)  # an OSError: it has ended
        finally:
            server.kill()
            os.close(own)
            web.released.set()
    assert b"] 0." in shown
