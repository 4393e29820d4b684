"""Commented service.yaml from a model and a few answers, for `init` and `deploy MODEL`. Pure.

The mode: multi-node if one node is not enough, raw if cold starts are not acceptable or the load is steady, else
serverless. What the target does not support is left out (plan/support/target_support.yaml).
"""

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from pilotlight.plan.support.target_support import supports
from pilotlight.wire.model_formats import find_format

Mode = Literal["serverless", "raw", "multi-node"]
Load = Literal["steady", "variable"]

# Scalars that a YAML reader may take for a boolean or null.
WORDS: Final = ("true", "false", "yes", "no", "on", "off", "y", "n", "null")
# MiB of a replica by the extra that its format needs, or a package that its code imports: the libraries take so much
# before a model is loaded.
LEAST_MEMORY_MIB: Final = {
    **dict.fromkeys((
        "torch", "text", "tensorflow", "torchvision", "torchaudio", "lightning", "pytorch_lightning", "transformers",
        "sentence_transformers", "diffusers", "timm", "ultralytics", "fastai", "keras", "jax", "flax", "vllm",
    ), 2048),
    **dict.fromkeys(("mlflow", "sklearn", "xgboost", "lightgbm", "catboost"), 1024),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answers:
    """Inputs of the recommendation. `nodes` per replica; `latency` in seconds, 0: scale by load alone."""

    load: Load = "variable"
    cold_starts: bool = True
    nodes: int = 1
    gpus: int = 0
    latency: float = 0.0


@dataclass(frozen=True, slots=True)
class Model:
    """`uri` and `format`, or `known`: its name in the catalogue.

    `ours`: our predictor serves it on the target, `runtime`: its name, where it is not selected.
    `libraries`: extras of the formats in it, and packages that its code imports.
    `pickle`: the file that is one, or may be, and why it is `untrusted`; `env` and `arguments`: of the container.
    """

    name: str
    uri: str = ""
    format: str = ""
    known: str = ""
    size: int = 0
    libraries: Collection[str] = ()
    phrase: str = ""
    ours: bool = False
    runtime: str = ""
    protocol: str = ""
    pickle: str = ""
    untrusted: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()


def recommend(answers: Answers) -> tuple[Mode, str]:
    """Return the mode and its reason."""
    if answers.nodes > 1:
        return "multi-node", f"one replica needs {answers.nodes} nodes"
    if not answers.cold_starts:
        return "raw", "no request may wait for a cold start"
    if answers.load == "steady":
        return "raw", "the load is steady, so there is no idle time to save"
    return "serverless", "the load varies, and idle time should cost nothing"


def document(
    model: Model, answers: Answers, mode: Mode, reason: str, file: str, target: str = "local", *,
    names_mode: bool = True,
) -> str:  # fmt: skip
    """Return the whole file with comments: of OME for a model of the catalogue, else of KServe.

    `names_mode`: the document asks for its mode; else the target chooses it.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    jinja = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, autoescape=False,  # noqa: S701 - YAML
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    jinja.filters.update(scalar=_text, quoted=shlex.quote)
    known = find_format(model.format)
    least = max(LEAST_MEMORY_MIB.get(each, 512) for each in (known.extra if known else "", *model.libraries))
    return jinja.get_template("service.yaml.j2").render(
        model=model, answers=answers, mode=mode, reason=reason, file="FILE" if file == "-" else file,
        target=target, names_mode=names_mode,
        latency=answers.latency if mode == "raw" else 0.0, memory_mib=least + 2 * model.size // 2**20,
        metric=_metric(mode, target), to_zero=mode == "serverless" and supports(target, "scale_to_zero"),
    )  # fmt: skip


def _metric(mode: Mode, target: str) -> str:
    """Return what to scale by: the first of the mode's metrics that the target supports; empty if it has none."""
    wanted = {"concurrency": "by_concurrency", "rps": "by_rate"}
    wanted = wanted if mode == "serverless" else {"cpu": "by_usage", **wanted}
    return next((metric for metric, feature in wanted.items() if supports(target, feature)), "")


def _text(value: str) -> str:
    """Return a YAML scalar, quoted if it could be read as another type."""
    plain = re.fullmatch(r"(?:\.{0,2}/|[A-Za-z])[A-Za-z0-9_./@+-]*(?:://[A-Za-z0-9_./@+-]+)?", value)
    if plain and value.lower() not in WORDS:
        return value
    import yaml

    # Not json.dumps: it escapes characters beyond U+FFFF as surrogate pairs, which YAML reads as two characters.
    quoted: str = yaml.safe_dump(value, default_style='"', width=2**31)
    return quoted.strip()
