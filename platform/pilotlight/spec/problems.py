"""Problems of a document with their code and source location, and the table of codes that docs/problems.md shows.

Readers collect all problems instead of stopping at the first. A code has one meaning and is never reused: PL1xx for
reading a document, PL2xx for the catalogue, PL3xx for the plan; PL4xx are the rules of `platformctl lint`.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from pilotlight.errors import PlatformError

Severity = Literal["error", "warning"]


class SourceLocation(NamedTuple):
    """File, line and column; both count from 1, and 0 means that the document came from no file."""

    file: str = ""
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


class Problem(NamedTuple):
    """One error or warning. `code` is stable (`PL101`, docs/problems.md); `path` reads `spec.engine.minReplicas`."""

    code: str
    location: SourceLocation
    path: str
    message: str
    severity: Severity = "error"

    def __str__(self) -> str:
        where = f"{self.location}: " if str(self.location) else ""
        what = f"{self.path}: " if self.path else ""
        return f"{where}{self.severity} {self.code}: {what}{self.message}"


class Problems:
    """Collector that is passed down while a document is read."""

    def __init__(self) -> None:
        self.items: list[Problem] = []

    def error(self, code: str, location: SourceLocation, path: str, message: str) -> None:
        self.items.append(Problem(code, location, path, message))

    def warn(self, code: str, location: SourceLocation, path: str, message: str) -> None:
        self.items.append(Problem(code, location, path, message, "warning"))

    @property
    def errors(self) -> list[Problem]:
        return [problem for problem in self.items if problem.severity == "error"]

    @property
    def warnings(self) -> list[Problem]:
        return [problem for problem in self.items if problem.severity == "warning"]


class InvalidDocument(PlatformError):
    """A document has errors; `problems` holds all of them."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class Code(NamedTuple):
    """Meaning of a problem code, and its remedy."""

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
    "PL107": Code("A variable is not set (with `--env`).", "Set it, or give a default: `${NAME:-default}`."),
    "PL108": Code("A `--set` does not fit the document.", "Write `path=value`; a list grows by its next index only."),
    "PL109": Code("The field is deprecated (warning).", "Use what replaces it; until then it is migrated."),
    "PL110": Code("The document is of a kind that is not read here.", "Take it out of the files that `-f` names."),
    "PL111": Code("Two fields exclude each other.", "Keep one of them."),
    "PL112": Code("A file cannot be read, or holds no document.", "Check its name, its permissions and its encoding."),
    "PL113": Code("Two services have one name and namespace.", "Rename one: each would overwrite the other."),
    "PL114": Code("The field has no effect anywhere (warning).", "Leave it out."),
    "PL115": Code(
        "There is no such annotation of ours, or it has no effect there.",
        "Take the name that is suggested, or move it to where it belongs: a misspelt rule would leave a door open.",
    ),
    "PL116": Code(
        "The canary of the document cannot be read.",
        "Mend the key that the message names; its keys are the flags of `platformctl canary start`.",
    ),
    "PL117": Code(
        "An annotation of ours has none of its values.", 'Write one that the message names, in quotes: `"true"`.'
    ),
    "PL118": Code(
        "An annotation about access or rates is invalid.", "Write it as docs/gateway.md says; tokens as SHA-256 in hex."
    ),
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
    "PL301": Code("The annotation names no deployment mode.", "Write one of those that the message lists."),
    "PL302": Code(
        "The service's deploymentMode annotation has no effect (warning).",
        "Write it in `spec.engine.annotations`, which OME obeys.",
    ),
    "PL303": Code("Several nodes and serverless exclude each other.", "Remove leader and worker, or the annotation."),
    "PL304": Code("The target cannot run the mode.", "Install what is named, or choose raw."),
    "PL305": Code(
        "The component that serves the model is missing.", "Add `spec.engine` (OME) or `spec.predictor` (KServe)."
    ),
    "PL306": Code(
        "No accelerator class meets what is asked for.", "Name a class of the catalogue, or loosen the constraints."
    ),
    "PL307": Code("A container has no image.", "Name an image, or a runtime that brings one."),
    "PL309": Code(
        "The fine-tuned weights cannot be served.",
        "Add their FineTunedWeight, name their own base model, or choose an engine that loads adapters.",
    ),
    "PL310": Code("maxReplicas is below minReplicas.", "Raise the one or lower the other."),
    "PL311": Code("A decoder cannot scale to zero (warning).", "Set its minReplicas to 1, which is kept anyway."),
    "PL312": Code("The autoscalerClass is unknown.", "Write hpa, keda, external or none."),
    "PL313": Code(
        "An HPA cannot do what is asked for.", "Use keda, or set minReplicas to 1 and remove what only KEDA can do."
    ),
    "PL314": Code("KEDA is missing or older than 2.18.", "Install or upgrade it, or use hpa."),
    "PL320": Code(
        "Nothing can wake the service from zero.",
        "Install the gateway or the HTTP add-on, use serverless, or keep one replica.",
    ),
    "PL321": Code("A query is empty or its brackets do not match.", "Mend it; it could break out of its guard."),
    "PL322": Code("A threshold is no number above 0.", "Write a number in the unit of the query."),
    "PL323": Code("scalingThreshold is missing (warning).", "Write it; OME's default of 10 is used meanwhile."),
    "PL324": Code("The server exports no metric that we know.", "Give customPromQuery and scalingThreshold."),
    "PL325": Code("rps of a foreign server is unknown (warning).", "Give a query, or scale by concurrency."),
    "PL326": Code(
        "The annotation asks for a trigger that does not exist.", "Write one of those that the message lists."
    ),
    "PL327": Code("The scalingOperator is unknown.", "Write GreaterThanOrEqual or LessThanOrEqual."),
    "PL328": Code(
        "LessThanOrEqual is honoured as an inverted ratio (warning).",
        "Nothing, if more replicas raise the query; else change the operator.",
    ),
    "PL329": Code("AverageValue of a time or a share (warning).", "Write type Value, which is used anyway."),
    "PL330": Code("cpu or memory cannot bring a service from zero.", "Set minReplicas to 1, or scale by concurrency."),
    "PL331": Code("An annotation repeats what a field says (warning).", "Write the field that is named."),
    "PL332": Code("Knative has no such autoscaling annotation.", "Write one of those that the message lists."),
    "PL333": Code(
        "An autoscaling annotation is out of Knative's bounds.", "Keep within the bounds that the message gives."
    ),
    "PL334": Code(
        "A formula names no trigger.", "Use the names of the triggers; a dash in a kind is an underscore in its name."
    ),
    "PL335": Code(
        "A formula leaves out what could wake the service.", "Use `requests` in it, or set minReplicas to 1."
    ),
    "PL336": Code("A formula's target is no whole number.", "Write 1 or more: KEDA drops the fallback otherwise."),
    "PL340": Code("Nothing can fetch the URI.", "Use one of the schemes that are listed, a claim or an image."),
    "PL342": Code("A local path is asked of a foreign image.", "Use a URI, a claim or an image."),
    "PL343": Code("The progress deadline is no duration.", "Write whole seconds, such as 20m or 1200s."),
    "PL344": Code("The memory limit is below the model's size (warning).", "Raise it to twice the model's size."),
    "PL345": Code("The timeout would cut long answers short (warning).", "Write 300 s or more, which is used anyway."),
    "PL346": Code("The routing strategy is unknown or needs a decoder.", "Write one of those that the message lists."),
    "PL347": Code("The router has no such setting.", "Write one of those that the message lists."),
    "PL348": Code("The health check interval is no duration within bounds.", "Write 100ms to 60m."),
    "PL350": Code(
        "Pods reach into the node (warning).", "Deploy into a namespace that admits privileged pods, or do without."
    ),
    "PL351": Code(
        "A foreign image meets only Pod Security baseline (warning).",
        "Force `--pod-security restricted` if it runs without root.",
    ),
    "PL352": Code("A new revision finds no free GPUs (warning).", "Free some, or use raw, which can recreate."),
    "PL353": Code("A stateful component cannot have a canary.", "Use raw."),
    "PL354": Code("The stable side of a raw canary is unknown.", "Plan against the target, or give `--current`."),
    "PL355": Code("A Knative feature flag is off (warning).", "Switch it on in config-features."),
    "PL356": Code("Both bounds of a disruption budget are given.", "Keep one of them."),
    "PL357": Code("A component behind another one cannot have a canary.", "Split where requests enter."),
    "PL358": Code("`spec.canary` needs Deployments.", "Annotate Standard, or use canaryTrafficPercent."),
    "PL359": Code("Knative refuses the field; it is left out (warning).", "Remove it, or use raw."),
    "PL360": Code(
        "The field has no effect in the mode (warning).", "Remove it, or choose a mode that honours it: docs/modes.md."
    ),
    "PL361": Code("Only our predictor could do that (warning).", "Use the server's own setting."),
    "PL362": Code("Requests and limits of a device differ.", "Write the same number, or only the limit."),
    "PL363": Code("A mount has no volume.", "Add the volume where the message says, or remove the mount."),
    "PL364": Code("A confidential model is asked for.", "Nothing here decrypts models: serve it decrypted."),
    "PL365": Code("The runtime is not made for Ray (warning).", "Name one that is, or use MultiNode."),
    "PL366": Code("A probe of a sidecar names no port.", "Write the port that the sidecar listens on."),
    "PL367": Code(
        "The access annotations would not be enforced: the image is not ours, or an explainer sends it no token.",
        "Use raw behind our gateway, or a runtime with our predictor.",
    ),
    "PL368": Code("A credential stands in the document (warning).", "Refer to a Secret: `valueFrom.secretKeyRef`."),
    "PL369": Code("A trigger asks a link-local address.", "Name a Service of the cluster, such as Prometheus'."),
    "PL371": Code("The target cannot scale it so.", "Change the bounds or the metric, or the target: docs/targets.md."),
    "PL372": Code("The target cannot split traffic.", "Release it at once, or choose a target: docs/targets.md."),
    "PL373": Code(
        "The target cannot run the image, the containers or the volume, or cannot read the model.",
        "Use our predictor and a model in a store, or choose a target: docs/targets.md.",
    ),
    "PL374": Code("The target has no such devices.", "Use whole GPUs, or choose a target: docs/targets.md."),
    "PL375": Code(
        "The target cannot route the requests, or not by these rules.",
        "Choose a target with a gateway: docs/targets.md.",
    ),
    "PL376": Code("The target needs an option for it.", "Add the `--target-option` that the message names."),
}


def as_markdown() -> str:
    """Return docs/problems.md, as `python -m pilotlight.spec.problems docs/problems.md` writes it."""
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


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(as_markdown(), encoding="utf-8")
