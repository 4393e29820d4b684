"""Settings from a file, `inference.yaml`; problems are reported with file:line:column.

Only the structure is YAML's: the text of a scalar is parsed by the setting's kind, as a flag's is, so `8080` and
`"8080"` are the same port. The YAML library is imported only if there is a file.
"""

from typing import Any

from pilotlight_predictor.settings.reading import ParsedSource, did_you_mean
from pilotlight_predictor.settings.table import ROWS, SettingRow

API_VERSION = "pilotlight.dev/v1alpha1"
PATHS = {path: row for row in ROWS for path in row.paths}
SECTIONS = {path.rsplit(".", depth)[0] for path in PATHS for depth in range(1, path.count(".") + 1)}
SERVICE_KIND = "InferenceService"
NULL = "tag:yaml.org,2002:null"


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
    """Walks the nodes of a YAML file and fills a ParsedSource."""

    def __init__(self, file: str, source: ParsedSource) -> None:
        self.file = file
        self.source = source

    def document(self, root: Any) -> None:
        """Report an InferenceService as one problem, instead of one for each of its keys."""
        if root.id == "mapping":
            for key, value in root.value:
                if (key.value, value.value) == ("kind", SERVICE_KIND):
                    self.source.skip(
                        f"{self.where(value)}: this is an InferenceService, which platformctl render reads;"
                        " --config wants a file of settings"
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
                self.source.problems.append(f"{self.where(key)}: {path} stands here a second time")
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
            near = did_you_mean(path, [*PATHS, *SECTIONS])
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
