"""A change of trace or log settings holds in every worker, whichever of them is asked and however."""

from pathlib import Path

import pytest
import tritonclient.grpc as triton
from tests.conftest import Serve
from tests.predictor.workers.several import pids_of, wait_for_all, write_pid
from tests.predictor.workers.test_rpc import free_port
from tritonclient.utils import InferenceServerException


def test_both_workers_take_settings_over_http_and_grpc(serve: Serve, tmp_path: Path) -> None:
    port, files = free_port(), tmp_path / "files"
    files.mkdir()
    write_pid(tmp_path / "models")
    server = serve(tmp_path / "models", "--workers", "2", "--grpc-port", str(port), "--files-dir", str(files))
    wait_for_all(server)
    server.wait_until(lambda: sum(line["event"] == "grpc.listening" for line in server.log()) == 2, "listening")
    setting = {"trace_level": ["TIMESTAMPS"], "trace_file": "t", "trace_rate": "1"}
    assert server.post("/v2/models/pid/trace/setting", setting).json()["trace_rate"] == "1"
    assert len(pids_of(server, 30)) == 2
    server.wait_until(lambda: (files / "t").exists() and "REQUEST_END" in (files / "t").read_text(), "tracing")
    with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
        client.update_trace_settings(settings={"trace_rate": "7"})
        client.update_log_settings({"log_verbose_level": 2})
        assert client.get_trace_settings(as_json=True)["settings"]["trace_rate"] == {"value": ["7"]}
        with pytest.raises(InferenceServerException, match="shared memory needs a single process"):
            client.get_system_shared_memory_status()
    told = [server.get(path).json() for path in ("/v2/trace/setting", "/v2/logging") for _ in range(6)]
    assert {each.get("trace_rate") for each in told[:6]} == {"7"}
    assert {each.get("log_verbose_level") for each in told[6:]} == {2}
