"""Sources of settings: command line, `INFERENCE_*` variables and inference.yaml, each parsed into a ParsedSource.

Flags are parsed by the table: importing argparse would add 6 ms to a cold start. Of a file only the structure is
YAML's: a scalar's text is parsed by the setting's kind, as a flag's is; problems are reported with file:line:column.
"""

import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from pilotlight import contract
from pilotlight.wire.messages import suggestion
from pilotlight_predictor.config import compat
from pilotlight_predictor.config.settings_table import CONFIG, ROWS, ParsedSource, SettingRow
from pilotlight_predictor.config.triton_flags import UNUSED
from pilotlight_predictor.config.value_types import BOOL, FALSE, PORT, PORT_OR_OFF, TRUE

FLAGS: dict[str, SettingRow] = {flag: row for row in (*ROWS, CONFIG) for flag in row.flags}
INFO_FLAGS = ("--help", "-h", "--version")
# Kubernetes sets variables for each Service of the namespace: one named "inference" sets INFERENCE_PORT.
SERVICE_LINK = r"_SERVICE_(HOST|PORT)(_\w+)?$|_PORT(_\d+_(TCP|UDP)(_\w+)?)?$"
API_VERSION = "pilotlight.dev/v1alpha1"
PATHS = {path: row for row in ROWS for path in row.paths}
SECTIONS = {path.rsplit(".", depth)[0] for path in PATHS for depth in range(1, path.count(".") + 1)}
SERVICE_KIND = "InferenceService"
NULL = "tag:yaml.org,2002:null"


def read_flags(argv: Sequence[str]) -> ParsedSource:
    """Parse the command line: `--flag value` or `--flag=value`; dashes equal underscores (KServe: `--model_name`).

    A boolean flag needs no value, and `--no-…` turns it off.
    """
    source, rest = ParsedSource(), deque(argv)
    translated: dict[str, list[str]] = {}
    while rest:
        word, equals, attached = rest.popleft().partition("=")
        flag = word.replace("_", "-")
        text = _text(flag, attached if equals else None, rest)
        if text is None:
            _report(word, flag, source)
        elif flag in FLAGS:
            source.add(FLAGS[flag], text, flag)
        elif flag in compat.TRANSLATED:
            translated.setdefault(flag, []).append(text)
        elif flag in UNUSED:
            compat.ignore(flag, text, source)
        else:
            source.add(FLAGS[_negated(flag)], "false", flag)
    compat.translate(translated, source)
    return source


def _text(flag: str, attached: str | None, rest: deque[str]) -> str | None:
    """Return the flag's value, taken from `rest` if not attached; None without a value or for an unknown flag."""
    if _negated(flag):
        return "false" if attached is None else None
    row = FLAGS.get(flag)
    if attached is None and ((row and row.kind is BOOL) or flag in compat.BOOLEANS):
        attached = rest.popleft() if rest and rest[0].lower() in TRUE | FALSE else "true"
    elif attached is None and flag.startswith("--") and rest and not rest[0].startswith("--"):
        attached = rest.popleft()  # for an unknown flag too: its value is not reported as another problem
    if row or flag in compat.TRANSLATED:
        return attached
    return attached or "" if flag in UNUSED else None


def _negated(flag: str) -> str:
    """Return `--access-log` for `--no-access-log`, else an empty string."""
    on = "--" + flag.removeprefix("--no-")
    return on if flag.startswith("--no-") and on in FLAGS and FLAGS[on].kind is BOOL else ""


def _report(word: str, flag: str, source: ParsedSource) -> None:
    if flag in FLAGS:
        source.skip(f"{flag}: needs a value, {FLAGS[flag].kind.must}")
    elif flag in compat.TRANSLATED:
        source.skip(f"{flag}: needs a value")
    elif _negated(flag):
        source.skip(f"{flag}: takes no value; write {_negated(flag)}=…")
    elif flag.startswith("-"):
        near = suggestion(flag, [*FLAGS, *compat.TRANSLATED, *UNUSED])
        source.skip(f"{word}: is not a flag{near or '; --help lists them'}")
    else:
        source.skip(f"{word}: is not a flag; a value follows its flag, as in --model-path {word}")


def read_environment(environ: Mapping[str, str]) -> ParsedSource:
    """Parse `INFERENCE_*`, and a few variables that platforms set (Knative, OpenTelemetry)."""
    source = ParsedSource()
    for row in (*ROWS, CONFIG):
        for name in row.variables:
            text = environ.get(name)
            if not text:
                continue
            if row.kind in (PORT, PORT_OR_OFF) and "://" in text:
                source.warnings.append(f"{name} = {text} describes a Kubernetes Service and is ignored")
                continue
            for part in text.split(row.kind.separator) if row.kind.many else [text]:
                source.add(row, part.strip(), name)
            break
    known = {name for row in (*ROWS, CONFIG) for name in row.variables}
    for name in environ:  # an unknown one is no error: other software may use the prefix
        if name.startswith(contract.ENV_SETTINGS_PREFIX) and name not in known and not re.search(SERVICE_LINK, name):
            source.warnings.append(f"{name} is not a setting and is ignored{suggestion(name, known)}")
    if environ.get("K_SERVICE") or environ.get(contract.ENV_SERVICE):
        source.implied |= {"server.behind_proxy": True, "server.admin_loopback": False}
    if environ.get("K_SERVICE") and environ.get("PORT", "").isdecimal():
        source.implied["server.reached_port"] = int(environ["PORT"])
    return source


def read_document(file: str, origin: str) -> ParsedSource:
    """Parse a file. `origin`: the flag or variable that names it."""
    source = ParsedSource()
    try:
        with open(file, encoding="utf-8") as stream:
            root = _compose(stream.read())
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        source.skip(f"{origin}: config = {file}, must be a readable file ({reason})")
    except ValueError as error:
        source.skip(f"{file}:{error}")
    else:
        if root is not None:
            _DocumentReader(file, source).document(root)
    return source


def _compose(text: str) -> Any:
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark: Any = error.problem_mark or error.context_mark
        raise ValueError(f"{mark.line + 1}:{mark.column + 1}: is not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ValueError(f"1:1: is not YAML: {error}") from None


class _DocumentReader:
    """Reader of the nodes of a YAML file into a ParsedSource."""

    def __init__(self, file: str, source: ParsedSource) -> None:
        self.file = file
        self.source = source

    def document(self, root: Any) -> None:
        """Report an InferenceService as one problem, instead of one for each of its keys."""
        if root.id == "mapping":
            for key, value in root.value:
                if (key.value, value.value) == ("kind", SERVICE_KIND):
                    self.source.skip(
                        f"{self.where(value)}: this is an InferenceService, for platformctl render; --config needs a"
                        " settings file"
                    )
                    return
        self.section(root, "")

    def section(self, node: Any, prefix: str) -> None:
        name = prefix.rstrip(".") or "the document"
        if node.id != "mapping":
            if node.tag != NULL:
                self.source.skip(f"{self.where(node)}: {name} must be a mapping of settings")
            return
        seen = set()
        for key, value in node.value:
            path = prefix + str(key.value).replace("-", "_")
            if path in seen:
                self.source.problems.append(f"{self.where(key)}: {path} is set twice")
            seen.add(path)
            self.entry(key, value, path)

    def entry(self, key: Any, value: Any, path: str) -> None:
        if path in PATHS:
            self.setting(PATHS[path], value)
        elif path in SECTIONS:
            self.section(value, path + ".")
        elif path == "apiVersion":
            if value.value != API_VERSION:
                self.source.reject(self.where(value), path, value.value, API_VERSION)
        else:
            near = suggestion(path, [*PATHS, *SECTIONS])
            self.source.skip(f"{self.where(key)}: {path} is not a setting{near}")

    def setting(self, row: SettingRow, node: Any) -> None:
        if node.id == "scalar":
            if node.tag != NULL:
                self.source.add(row, node.value, self.where(node))
        elif node.id == "sequence" and row.kind.many == "list":
            for item in node.value:
                self.source.add(row, str(item.value), self.where(item))
        elif node.id == "mapping" and row.kind.many == "map":
            for key, item in node.value:
                self.source.add(row, f"{key.value}={item.value}", self.where(item))
        else:
            self.source.reject(self.where(node), row.key, f"a {node.id}", row.kind.must)

    def where(self, node: Any) -> str:
        return f"{self.file}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"
