"""Text of the section on the control process in docs/reference/metrics.md, made from its table of metrics."""

from typing import Final

from pilotlight.observability.control_metrics import TABLE

INTRODUCTION: Final = """# Metrics of the control process

`/metrics` of the control API, on one machine or of `platformctl api` beside a cluster; beyond loopback it needs the
token of `--metrics-token-file` or the operator's. Every series has the labels `namespace` and `inference_service`.
Values are computed at each scrape, so a restart resets only the count of decisions.

| name | type | other labels | meaning |
|---|---|---|---|
"""


def page() -> str:
    rows = (f"| `{name}` | {kind} | {labels} | {text} |\n" for name, (labels, kind, text) in TABLE.items())
    return INTRODUCTION + "".join(rows)
