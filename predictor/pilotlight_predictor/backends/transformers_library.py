"""Import of torch and transformers, for the backends `text` and `huggingface`."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any, Final

from pilotlight.wire.environments.install_command import install_command
from pilotlight.wire.model_formats import SAVE_TOKENIZER, has_tokenizer, pickled_weights
from pilotlight_predictor.backends.base import first_line
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.repository.model_config import stays_inside

LOADING: Final = Lock()  # transformers' lazy imports are not thread-safe
# Keys with a path of the machine that the model was saved on, which nothing opens, and long lists without paths.
NOT_OPENED: Final = frozenset(
    {"name_or_path", "_name_or_path", "base_model_name_or_path", "special_tokens_map_file", "added_tokens_decoder",
     "id2label", "label2id"}
)  # fmt: skip
CHARACTERS: Final = 64  # of one token, at most on average: a tokenizer takes 300 bytes and 25 µs for each of a text


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
            f"models in the Hugging Face layout need the text extra: {install_command('text')} ({error})"
        ) from None
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return transformers


def check_weights(folder: Path, auto_class: str) -> None:
    """Raise LoadFailed for weights that are pickles alone: transformers would say that it finds none."""
    if reason := pickled_weights(folder, auto_class):
        raise LoadFailed(reason)


def check_paths(folder: Path) -> None:
    """Raise LoadFailed if a model names files outside of its folder, which transformers would read.

    An index names files with weights; a configuration may hold arguments of a class, such as `vocab`, whose lines would
    become tokens of the output.
    """
    for file in sorted((*folder.glob("*config.json"), *folder.glob("*.index.json"), *folder.glob("modules.json"))):
        try:
            document = json.loads(file.read_bytes())
            if file.name.endswith(".index.json"):
                outside = [name for name in set(document["weight_map"].values()) if not stays_inside(name)]
            else:
                outside = [name for name in _strings(document) if _leads_out(folder, name)]
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise LoadFailed(f"{file.name} of {folder.name} cannot be read: {first_line(error)}") from None
        if outside:
            raise LoadFailed(f"{file.name} of {folder.name} names {outside[0]}, which is outside of the folder")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value if isinstance(value, list) else (value[key] for key in value.keys() - NOT_OPENED):
            yield from _strings(each)


def _leads_out(folder: Path, name: str) -> bool:
    """Whether a string is the path of a file or a model, from the folder or the working directory, and not in it."""
    for base in (folder, Path.cwd()):
        path = os.path.normpath(base / name)
        found = name and (os.path.isfile(path) or os.path.isfile(os.path.join(path, "config.json")))
        if found and not Path(path).is_relative_to(os.path.abspath(folder)):
            return True
    return False


def load_part(auto_class: str, folder: Path) -> Any:
    """Return the tokenizer or processor in a model's directory. Raise LoadFailed if it cannot be read."""
    import transformers

    if auto_class == "AutoTokenizer" and (beside := folder.parent / "components" / "tokenizer").is_dir():
        folder = beside  # MLflow's layout
    check_paths(folder)
    if auto_class == "AutoTokenizer" and not has_tokenizer(folder):  # transformers would make one without a vocabulary
        raise LoadFailed(f"there is no tokenizer.json in {folder.name}; {SAVE_TOKENIZER}")
    try:
        return getattr(transformers, auto_class).from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        part = auto_class.removeprefix("Auto").lower()
        raise LoadFailed(f"the {part} in {folder.name} cannot be read: {first_line(error)}") from error
