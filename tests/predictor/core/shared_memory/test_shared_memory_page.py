"""The client on the page runs as it stands there."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.doc_pages import page_section
from tests.onnx_models import write_add_sub
from tests.serving import RunningServer

PAGE = page_section("docs/reference/http-api.md", "Shared memory")
(CLIENT,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_client_of_the_page_gets_its_sum_without_sending_tensors(
    serve: Callable[..., RunningServer], tmp_path: Path
) -> None:
    write_add_sub(tmp_path, "add_sub", config="max_batch_size: 8")
    server = serve(tmp_path, "--allow-shared-memory")
    text = CLIENT.replace("127.0.0.1:8080", server.address).replace('"/tensors"', f'"/tensors_{os.getpid()}"')
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "[[1. 2. 3. 4.]]", done.stderr[-3000:]
