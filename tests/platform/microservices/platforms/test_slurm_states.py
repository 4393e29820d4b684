"""A microservice on another node of a cluster whose programs are stand-ins."""

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
from pilotlight.microservices.platforms.slurm import Slurm, has_gpus
from pilotlight.microservices.registry.records import Entry

ID = "4ca2f1e6-0d5f-4d39-9a55-6a4f1e3d2b10"


@pytest.mark.parametrize(
    ("printed", "found"),
    [("", None), ("up|(null)\n", False), ("up|gpu:8\nup|(null)\n", True), ("up|craynetwork:4,gpu:a100:2\n", True)],
)
def test_whether_a_partition_has_gpus(printed: str, found: bool | None) -> None:
    assert has_gpus(printed) is found


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
        "scancel": f"echo '{number}|CANCELLED|n1|{ID}|port=8080/job|None' > {tmp_path}/queue",
        "sacct": "exit 1",
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    (tmp_path / "queue").write_text(f"{number}|RUNNING|n1|{ID}|port=8080/job|None\n")
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
