"""What Slurm prints, as it was seen to print it, and what is made of it."""

import os
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from tests.daemons.installed_programs import install
from tests.platform.microservices.platforms.contract import clean_environment, get

from pilotlight.microservices.platforms.host_ports import can_bind
from pilotlight.microservices.platforms.slurm import Slurm, fields, has_gpus, read_account, read_queue, seen
from pilotlight.microservices.registry.records import Entry

ID = "4ca2f1e6-0d5f-4d39-9a55-6a4f1e3d2b10"


@pytest.mark.parametrize(
    ("line", "state", "status", "reason"),
    [
        ("PENDING|n/a|a|port=8080/job|None", "pending", "Pending", "PENDING"),
        (
            "PENDING|n/a|a|x|Resources", "pending", "Pending",
            "PENDING (Resources): no node of the partition has enough free now",
        ),
        (
            "PENDING|n/a|a|x|ReqNodeNotAvail, UnavailableNodes:gpu7", "pending", "Pending",
            "PENDING (ReqNodeNotAvail, UnavailableNodes:gpu7): a node that it needs is down, drained or reserved",
        ),
        ("PENDING|n/a|a|x|Odd|Reason", "pending", "Pending", "PENDING (Odd|Reason)"),
        ("RUNNING|vm|a|port=8080/job|None", "running", "Running", ""),
        ("COMPLETED|vm|a|x|None", "stopped", "Succeeded", "COMPLETED"),
        ("CANCELLED|vm|a|x|None", "stopped", "Succeeded", "CANCELLED"),
        (
            "FAILED|vm|a|x|NonZeroExitCode", "failed", "Failed",
            "FAILED (NonZeroExitCode): its command ended with an error",
        ),
        (
            "TIMEOUT|vm|a|x|TimeLimit", "failed", "Failed",
            "TIMEOUT (TimeLimit): it ran as long as it may: set time",
        ),
        ("NODE_FAIL|vm|a|x|NodeDown", "failed", "Failed", "NODE_FAIL (NodeDown): its node failed"),
    ],
)  # fmt: skip
def test_states_of_slurm_are_states_of_ours_with_the_reason(line: str, state: str, status: str, reason: str) -> None:
    queued = read_queue(line + "\n")
    assert queued is not None
    found = seen(queued, ("last words",))
    assert (found.state, found.pod_status, found.reason, found.tail) == (state, status, reason, ("last words",))


def test_a_job_without_a_node_has_no_pod_and_one_that_completes_is_not_over() -> None:
    waiting, completing = read_queue("PENDING|n/a|a|x|None"), read_queue("COMPLETING|vm|a|x|None")
    assert waiting is not None
    assert (waiting.host, waiting.over) == ("", False)
    assert completing is not None
    assert not completing.over
    assert read_queue("") is None


def test_a_job_of_the_past_is_read_from_the_accounts() -> None:
    cancelled = read_account(f"CANCELLED by 1000|vm|{ID}||0:15\n")
    assert cancelled is not None
    assert (cancelled.meaning, cancelled.name) == ("stopped", ID)
    failed = read_account(f"FAILED|vm|{ID}||3:0\n")
    assert failed is not None
    assert seen(failed).reason == "FAILED (exit code 3)"
    done = read_account(f"COMPLETED|vm|{ID}||0:0\n")
    assert done is not None
    assert done.reason == ""


@pytest.mark.parametrize(
    ("printed", "found"),
    [("", None), ("up|(null)\n", False), ("up|gpu:8\nup|(null)\n", True), ("up|craynetwork:4,gpu:a100:2\n", True)],
)
def test_whether_a_partition_has_gpus(printed: str, found: bool | None) -> None:
    assert has_gpus(printed) is found


def test_a_node_says_what_it_calls_itself() -> None:
    assert (
        fields("NodeName=n1 Arch=x86_64 NodeAddr=10.0.0.1 NodeHostName=n1.hpc OS=Linux 6.1 #1 SMP")["NodeHostName"]
        == "n1.hpc"
    )


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def node_port() -> Iterator[int]:
    """Listens where a job of a number between 1 and 9999 would."""
    port = next(port for port in range(29000, 29900) if can_bind(port))
    with ThreadingHTTPServer(("127.0.0.1", port), Answers) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield port
        server.shutdown()


def test_a_job_on_another_node_is_reached_by_a_tunnel_that_its_stop_ends(tmp_path: Path, node_port: int) -> None:
    """Slurm's programs say what they say of a cluster with a node called n1; ssh to it leads to this machine."""
    programs = install(tmp_path / "bin", "ssh")
    number = node_port - 20000
    for name, text in {
        "squeue": f"cat {tmp_path}/queue",
        "scontrol": "echo NodeName=n1 NodeAddr=10.0.0.1 NodeHostName=n1.hpc",
        "scancel": f"echo 'CANCELLED|n1|{ID}|port=8080/job|None' > {tmp_path}/queue",
        "sacct": "exit 1",
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    (tmp_path / "queue").write_text(f"RUNNING|n1|{ID}|port=8080/job|None\n")
    environ = clean_environment(tmp_path, PATH=f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    near = next(port for port in range(18900, 18980) if can_bind(port))
    place, url = Slurm({**environ, "SSH_STAND_IN": "n1"}), f"http://localhost:{near}"
    entry = Entry("slurm", "pilotlight", url, "2026-01-01T00:00:00+00:00", near, platform_job_id=str(number))
    with place.open_route(ID, entry) as reached:
        assert reached == url
    assert get(url) == 200, "it stands until the job is stopped"
    place.stop(ID, entry)
    assert get(url) == 0
    assert place.status(ID, entry).state == "stopped"
