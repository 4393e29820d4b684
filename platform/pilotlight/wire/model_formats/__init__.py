"""Model formats: one table and one detection for predictor and platformctl. Remote files are known by name alone."""

from pilotlight.wire.model_formats.detection import (
    SAVE_TOKENIZER,
    SETTINGS_FILE,
    WHOLE_MODULE,
    Detected,
    detect,
    detect_file,
    has_tokenizer,
    huggingface_config,
    huggingface_phrase,
    is_exported_program,
    is_in_repository,
    is_repository,
    is_script,
    mlserver_format,
    only_model,
    pickled_weights,
    read_settings,
)
from pilotlight.wire.model_formats.table import (
    FORMATS,
    PICKLE_SUFFIXES,
    SKOPS_TYPES,
    ModelFormat,
    by_name,
    canonical_name,
    find_format,
    model_name,
    name_for,
    split_object,
)
from pilotlight.wire.model_formats.torch_weights import foreign_types, holds_only_weights, missing_module

__all__ = [
    "FORMATS", "PICKLE_SUFFIXES", "SAVE_TOKENIZER", "SETTINGS_FILE", "SKOPS_TYPES", "WHOLE_MODULE", "Detected",
    "ModelFormat", "by_name", "canonical_name", "detect", "detect_file", "find_format", "foreign_types",
    "has_tokenizer", "holds_only_weights", "huggingface_config", "huggingface_phrase", "is_exported_program",
    "is_in_repository", "is_repository", "is_script", "missing_module", "mlserver_format", "model_name",
    "name_for", "only_model", "pickled_weights", "read_settings", "split_object",
]  # fmt: skip
