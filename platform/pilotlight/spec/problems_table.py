"""Every numbered problem that reading, the catalogue and planning can tell of, as data.

docs/problems.md is made of it (`python -m pilotlight.spec.problems_table docs/problems.md`), and a test compares.
A code is never used for two things and never reused. PL1xx: reading a document. PL2xx: the catalogue. PL3xx: the plan.
Rules of `platformctl lint` (PL4xx) are listed with the rules themselves.
"""

import sys
from pathlib import Path
from typing import Final, NamedTuple


class Code(NamedTuple):
    """What it means, and what to do about it."""

    meaning: str
    remedy: str


SECTIONS: Final = {"PL1": "Reading documents", "PL2": "The catalogue", "PL3": "The plan"}

CODES: Final[dict[str, Code]] = {
    "PL100": Code("The text is not valid YAML or JSON.", "Mend it at the place named; mind indentation and quotes."),
    "PL101": Code(
        "The field does not exist there.", "Take the name that is suggested, or move it to where it belongs."
    ),
    "PL102": Code("The value has the wrong type.", 'Quote text that looks like a number ("1"), and unquote numbers.'),
    "PL103": Code("A required field is missing.", "Add it."),
    "PL104": Code("The value is not one of those allowed.", "Choose one that fits what the message says it must be."),
    "PL105": Code(
        "A key is given twice in one map.", "Keep one of the two: a cluster would drop the other in silence."
    ),
    "PL106": Code(
        "A YAML construct has no meaning in JSON.", "Leave out tags, infinite numbers and keys that are no text."
    ),
    "PL107": Code("A variable is not set (with `--interpolate`).", "Set it, or give a default: `${NAME:-default}`."),
    "PL108": Code("A `--set` does not fit the document.", "Write `path=value`; a list grows by its next index only."),
    "PL109": Code("The field is deprecated (warning).", "Use what replaces it; until then it is migrated."),
    "PL110": Code("The document is of a kind that is not read here.", "Take it out of the files that `-f` names."),
    "PL111": Code("Two fields exclude each other.", "Keep one of them."),
    "PL112": Code("A file cannot be read, or holds no document.", "Check its name, its permissions and its encoding."),
    "PL113": Code("Two services have one name and namespace.", "Rename one: each would overwrite the other."),
    "PL200": Code("The API version does not have this kind.", "Use the version that the message names."),
    "PL201": Code("A cluster-wide runtime has a namespace.", "Leave it out, or make it a ServingRuntime."),
    "PL202": Code("A runtime brings no container.", "Add `engineConfig.runner` (OME) or `containers` (KServe)."),
    "PL210": Code("No model has the name.", "Add its document to the files or with `--catalog`, or mend the name."),
    "PL211": Code("The model is disabled.", "Choose another, or enable it."),
    "PL212": Code("The model's format is neither given nor told by its address.", "Name it: onnx, sklearn, …"),
    "PL213": Code("A size cannot be read.", "Write parameters as 7B or 560M, bytes as 16Gi."),
    "PL220": Code("No runtime has the name.", "Add its document to the files or with `--catalog`, or mend the name."),
    "PL221": Code("The runtime is disabled.", "Choose another, or enable it."),
    "PL222": Code("The named runtime does not serve this model.", "Choose another, or leave the choice to us."),
    "PL223": Code("The runtime does not speak the protocol.", "Ask for one that it speaks, or choose another runtime."),
    "PL224": Code("No runtime serves the model.", "Name one, or see why each was passed over: `explain --runtime`."),
    "PL225": Code("Runtime and service differ about several nodes.", "Choose a runtime that has, or has no, workers."),
    "PL226": Code("Runtime and service differ about a decoder.", "Choose a runtime with a decoderConfig, or without."),
    "PL227": Code("The runtime does not support the accelerator class.", "Choose another class, or another runtime."),
    "PL228": Code("Nothing says what the component runs.", "Name a model, a runtime, or an image."),
    "PL229": Code("A named runtime cannot be checked against its model.", "Say in the model what is missing."),
    "PL230": Code("A runtime has an unknown placeholder.", "Use .Name, .Namespace, .Labels, .Annotations."),
    "PL231": Code("A label or annotation that a runtime uses is missing (warning).", "Add it to the service."),
}


def as_markdown() -> str:
    """docs/problems.md, complete."""
    parts = [
        "# Problems and their codes\n",
        "Every problem names its place (`file:line:column`), the path in the document, the value and what it must be.",
        "All problems of a document are told at once. Errors end a command with exit code 2; warnings do not, unless",
        "`--strict` is given. `platformctl lint` has rules of its own, PL4xx, which it lists with reasons and fixes.\n",
    ]
    for prefix, title in SECTIONS.items():
        rows = [f"| {code} | {known.meaning} | {known.remedy} |" for code, known in CODES.items() if code[:3] == prefix]
        if rows:
            parts += [f"## {title}\n", "| code | what it means | what to do |", "|---|---|---|", *rows, ""]
    return "\n".join(parts).rstrip() + "\n"


def main() -> None:
    Path(sys.argv[1]).write_text(as_markdown(), encoding="utf-8")


if __name__ == "__main__":
    main()
