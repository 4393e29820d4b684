"""Import of torch and transformers, for the backends `text` and `huggingface`."""

import json
from pathlib import Path
from threading import Lock
from typing import Any, Final

from pilotlight_predictor.backends.base import first_line
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.repository.model_config import stays_inside

LOADING: Final = Lock()  # transformers' lazy imports are not thread-safe
TOKENIZER_FILES: Final = ("tokenizer*", "vocab*", "*.model", "*.spm")


def import_transformers(*names: str) -> Any:
    """Return transformers after importing what `names` need of it, quiet. Call with LOADING held."""
    try:
        import torch  # noqa: F401
        import transformers
        from transformers.utils import logging

        for name in names:
            getattr(transformers, name)
    except ImportError as error:
        raise LoadFailed(
            f"models in Hugging Face's layout need the text extra: pip install 'pilotlight[text]' ({error})"
        ) from None
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return transformers


def check_shards(folder: Path) -> None:
    """Raise LoadFailed if an index of weights names a file outside of the folder, which transformers would read."""
    for index in folder.glob("*.index.json"):
        try:
            names = set(json.loads(index.read_bytes())["weight_map"].values())
            outside = [name for name in names if not stays_inside(name)]
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise LoadFailed(f"{index.name} of {folder.name} cannot be read: {first_line(error)}") from None
        if outside:
            raise LoadFailed(f"{index.name} of {folder.name} names {outside[0]}, which is outside of the folder")


def load_part(auto_class: str, folder: Path, model: str) -> Any:
    """Return the tokenizer or processor in a model's directory. Raise LoadFailed if it cannot be read."""
    import transformers

    try:
        if auto_class == "AutoTokenizer" and not any(any(folder.glob(name)) for name in TOKENIZER_FILES):
            raise OSError("there is no tokenizer.json")  # transformers would make one without a vocabulary
        return getattr(transformers, auto_class).from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        part = auto_class.removeprefix("Auto").lower()
        raise LoadFailed(f"{model}: the {part} in {folder.name} cannot be read: {first_line(error)}") from error
