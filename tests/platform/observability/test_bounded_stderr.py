"""The log behind standard error stays within its bound while it is written."""

import subprocess
import sys
from pathlib import Path

WRITER = """
import logging, os
from pilotlight.observability.bounded_stderr import BoundedStderrHandler
logging.basicConfig(handlers=[BoundedStderrHandler()], format="%(message)s")
for number in range(1000):
    logging.error("%099d", number)
os.write(1, b"the end\\n")
"""


def write(log: Path) -> None:
    with log.open("ab") as output:
        environ = {"PILOTLIGHT_LOG_BYTES": "10000"}
        subprocess.run([sys.executable, "-c", WRITER], stdout=output, stderr=output, env=environ, check=True)


def test_a_log_has_three_files_of_the_limit_and_no_line_is_torn(tmp_path: Path) -> None:
    log = tmp_path / "daemon.log"
    write(log)
    files = [log, tmp_path / "daemon.log.1", tmp_path / "daemon.log.2"]
    assert sorted(tmp_path.iterdir()) == files
    assert all(file.stat().st_size <= 10_100 for file in files)
    lines = [line for file in reversed(files) for line in file.read_text().splitlines()]
    assert lines[-1] == "the end"  # standard output goes on in the new file, too
    assert lines[:-1] == [f"{number:099d}" for number in range(1000 - len(lines) + 1, 1000)]
    assert {file.stat().st_mode & 0o777 for file in files[:2]} == {0o600}


def test_another_file_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path / "output.txt")
    assert [file.name for file in tmp_path.iterdir()] == ["output.txt"]


def test_a_rotation_that_fails_is_tried_again(tmp_path: Path) -> None:
    log = tmp_path / "daemon.log"
    obstacle = tmp_path / "daemon.log.new"
    obstacle.mkdir()  # the new file cannot be opened, as without a free descriptor
    write(log)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["daemon.log", "daemon.log.new"]
    obstacle.rmdir()
    write(log)
    assert log.stat().st_size <= 10_100
