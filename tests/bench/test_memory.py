"""A process is weighed as if it were alone: others that map the same memory do not make it lighter."""

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.processes import alone_mb, memory_mb

SIZE = 64 << 20
HOLDING = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    held = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    sum(held[at] for at in range(0, len(held), 4096))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[int]:
    """A process that has mapped the file beside us."""
    file = tmp_path / "file"
    file.write_bytes(os.urandom(1 << 20) * (SIZE >> 20))
    command = [sys.executable, "-c", HOLDING, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process.pid
        process.communicate()


def test_a_stranger_with_the_same_file_takes_from_the_share_and_not_the_weight(holder: int, tmp_path: Path) -> None:
    share, weight = memory_mb(holder), alone_mb(holder)
    with (tmp_path / "file").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as ours:
        assert sum(ours[at] for at in range(0, SIZE, 4096)) > 0
        assert memory_mb(holder) < share - 20
        assert abs(alone_mb(holder) - weight) < 5
