"""The control process under the name that gateways of earlier releases start it by."""

import subprocess
import sys


def test_a_running_gateway_of_an_earlier_release_can_bring_the_control_process_back() -> None:
    command = [sys.executable, "-m", "pilotlight.daemon", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "--gateway-port" in done.stdout
