"""Model files that unpack to more than the available memory are refused; one that ends the process is logged before."""

import signal
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.onnx_models import write_python
from tests.serving import RunningServer

from pilotlight_predictor.backends import sklearn
from pilotlight_predictor.backends.base import LoadSpec
from pilotlight_predictor.backends.torch import modules, safe_load
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.repository.model_config import ModelConfig

pytestmark = pytest.mark.security
PIB = 1 << 50


def no_code(module: str, name: str) -> Any:
    raise AssertionError("no code is loaded")


READERS: dict[str, Callable[[LoadSpec], Any]] = {
    "model.skops": lambda spec: sklearn.read_estimator(spec, no_code),
    "model.pt": modules.load_module,
    "model.pt2": modules.load_module,
    "pytorch_model.bin": lambda spec: safe_load.load(spec, no_code),
}


@pytest.mark.parametrize("name", READERS)
def test_a_zip_bomb_is_refused_before_it_is_unpacked(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member in ("schema.json", "m/data.pkl", "m/code/net.py", "m/models/model.json"):
            archive.writestr(member, bytes(1 << 20))
            archive.filelist[-1].file_size = PIB
    assert path.stat().st_size < 10_000
    with pytest.raises(LoadFailed, match=rf"{name} unpacks to 4,294,967,296 MiB, but only [\d,]+ MiB of memory"):
        READERS[name](LoadSpec(ModelConfig("m"), 1, path, tmp_path))


def test_a_file_that_ends_the_process_is_the_last_line_of_the_log(
    tmp_path: Path, serve: Callable[..., RunningServer]
) -> None:
    """Native libraries do so for damaged files, such as CatBoost and LightGBM."""
    write_python(tmp_path, "crashing", "import os\n\nos.kill(os.getpid(), 11)\n")
    server = serve(tmp_path, ready=False)
    assert server.process.wait(60) == -signal.SIGSEGV
    last = server.log()[-1]
    assert (last["event"], last["model"], last["message"]) == ("model.loading", "crashing", "'crashing' from model.py")
