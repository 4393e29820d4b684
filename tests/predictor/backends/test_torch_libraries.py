"""torch's libraries are in memory before its import asks for them, which would hold up all who need the interpreter."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

# Looks at what is mapped whenever somebody looks for torch, and goes no further once its libraries are there.
CODE = """
import sys
from pathlib import Path
from pilotlight_predictor.backends.torch import backend as torch
from pilotlight_predictor.errors import LoadFailed


class Watch:
    def find_spec(self, name, path, target=None):
        if name == "torch" and "libtorch_python.so" in Path("/proc/self/maps").read_text():
            raise ImportError("all of it is there")


sys.meta_path.insert(0, Watch())
try:
    torch.prepare()
except LoadFailed as error:
    print(error)
"""


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.skipif(sys.platform != "linux", reason="reads what is mapped in /proc")
def test_libraries_of_torch_are_loaded_before_its_import() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert "all of it is there" in done.stdout
