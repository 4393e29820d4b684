"""Label files of classifier outputs: one label per line, the line number is the class."""

from pathlib import Path

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.repository.model_config import ModelConfig
from pilotlight_predictor.repository.names import stays_inside


def read_labels(model_dir: Path, config: ModelConfig) -> dict[str, list[str]]:
    """Return labels by output name, for the outputs that have a `label_filename`."""
    return {
        output.name: _labels(model_dir, output.name, output.label_filename)
        for output in config.outputs
        if output.label_filename
    }


def _labels(model_dir: Path, output: str, filename: str) -> list[str]:
    field = f"output '{output}': label_filename = {filename!r}"
    if not stays_inside(filename):
        raise LoadFailed(f"{field}, must be a path inside the model's directory")
    try:
        text = (model_dir / filename).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise LoadFailed(f"{field} cannot be read in {model_dir}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise LoadFailed(f"{field} is not UTF-8 text; save it as UTF-8") from None
    return text.removesuffix("\n").split("\n") if text else []
