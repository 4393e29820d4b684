"""Record what NVIDIA's Triton does with every case: `python -m tests.triton_compatibility.record`.

Writes triton.jsonl: its version, then a line per case. Needs the wheel that tests/differential installs.
"""

import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Final

from bench.servers import place_stub
from tests.differential.triton import _environment, _is_ready, _stop, _variables
from tests.ports import free_port
from tests.triton_compatibility.play import FOLDER, Address, Case, Outcome, key, outcomes, read_cases
from tests.triton_compatibility.servers import SERVERS, start_flags, write_repository

START_S: Final = 60.0


class RecordedTriton:
    """A Triton process on its own ports and repository."""

    def __init__(self, server: str, *flags: str) -> None:
        environment = _environment()
        home = environment.site_packages / "pytriton" / "tritonserver"
        place_stub(home)
        self.folder = Path(tempfile.mkdtemp())
        repository = write_repository(self.folder / "models", SERVERS[server])
        self.address = Address(repository, free_port(), free_port(), free_port())
        command = [str(home / "bin" / "tritonserver"), f"--model-repository={repository}"]
        command += [f"--backend-directory={home / 'backends'}", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1"]
        ports = {"http": self.address.http, "grpc": self.address.grpc, "metrics": self.address.metrics}
        command += [f"--{name}-port={port}" for name, port in ports.items()]
        command += [
            *start_flags(SERVERS[server]),
            *(flag.replace("BACKENDS", str(home / "backends")) for flag in flags),
        ]
        self.log = self.folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=_variables(environment), cwd=self.folder
            )

    def wait(self) -> bool:
        """Return whether it is ready; False if it has exited."""
        deadline = time.monotonic() + START_S
        while self.process.poll() is None and time.monotonic() < deadline:
            if _is_ready(self.address.http):
                return True
            time.sleep(0.05)
        return False

    def close(self) -> None:
        _stop(self.process)
        shutil.rmtree(self.folder)


def _start(case: Case) -> Outcome:
    triton = RecordedTriton("shm", *case["flags"])
    try:
        return {"status": "accepted" if triton.wait() else "refused"}
    finally:
        triton.close()


def _play(server: str, cases: list[Case]) -> tuple[str, dict[str, Outcome]]:
    """Return the version, and the outcomes up to the first case that crashes the server."""
    triton, recorded = RecordedTriton(server), dict[str, Outcome]()
    try:
        if not triton.wait():
            return "", {key(case): {"status": "unknown flag"} for case in cases if "edit" not in case}
        with urllib.request.urlopen(f"http://127.0.0.1:{triton.address.http}/v2") as reply:
            version = json.load(reply)["version"] if server != "restricted" else ""
        try:
            for name, outcome in outcomes(cases, triton.address):
                if triton.process.poll() is not None:
                    recorded[name] = {"status": "crash"}
                    break
                recorded[name] = outcome
        except OSError:
            sent = [key(case) for case in cases if "edit" not in case]
            recorded[sent[len(recorded)]] = {"status": "crash"}
        return version, recorded
    finally:
        triton.close()


def main() -> None:
    recorded: dict[str, Outcome] = {}
    version = ""
    cases = read_cases()
    for server in SERVERS:
        left = [case for case in cases if case.get("on", "plain") == server and "flags" not in case]
        while left:
            seen, played = _play(server, left)
            version = seen or version
            recorded |= played
            left = left[1 + max(index for index, case in enumerate(left) if key(case) in played) :]
    recorded |= {key(case): _start(case) for case in cases if "flags" in case}
    lines = [{"triton": version}, *({"case": name, **outcome} for name, outcome in recorded.items())]
    (FOLDER / "triton.jsonl").write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


if __name__ == "__main__":
    main()
