"""Puts stand-ins on a PATH under the names of the programs that they stand in for."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent / "stand_ins"


def install(folder: Path, *names: str) -> Path:
    """Returns the folder, for the front of a PATH."""
    folder.mkdir(exist_ok=True)
    for name in names:
        program = folder / name
        text = f"#!{sys.executable}\nimport runpy\nrunpy.run_path({str(HERE / f'{name}.py')!r}, run_name='__main__')\n"
        program.write_text(text)
        program.chmod(0o755)
    return folder
