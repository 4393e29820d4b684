"""Stand-ins of engines, installed as real ones are: an environment with an interpreter, programs and modules."""

import os
import sys
import sysconfig
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
# Module, or program if it has no dot, by distribution.
STAND_INS: Final = {
    "vllm": ("vllm.entrypoints.openai.api_server", "tests.engines.vllm_engine"),
    "sglang": ("sglang.launch_server", "tests.engines.sglang_engine"),
    "llama_cpp_python": ("llama_cpp.server", "tests.engines.llama_cpp_engine"),
}


def install(folder: Path, *distributions: str) -> str:
    """Make an environment that has these; return its folder of programs, for PILOTLIGHT_ENGINE_PATH."""
    programs, packages = folder / "bin", folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    programs.mkdir(parents=True)
    packages.mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text(f"home = {Path(os.path.realpath(sys.executable)).parent}\n")
    python = programs / "python"
    python.symlink_to(os.path.realpath(sys.executable))
    (packages / "stand-ins.pth").write_text(f"{ROOT}\n{ROOT / 'platform'}\n{sysconfig.get_path('purelib')}\n")
    for distribution in distributions:
        module, engine = STAND_INS[distribution]
        (packages / f"{distribution}-1.0.dist-info").mkdir()
        file = packages.joinpath(*module.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True)
        file.write_text(f"from {engine} import main\n\nmain()\n")
    if "vllm" in distributions:
        (programs / "vllm").write_text(f"#!{python}\nfrom tests.engines.vllm_engine import main\n\nmain()\n")
        (programs / "vllm").chmod(0o755)
    return str(programs)
