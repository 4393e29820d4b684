"""Generator of docs/lint.md from the table of rules: `python -m pilotlight.lint.docs > docs/lint.md`."""

import sys
from typing import Final

from pilotlight.lint.rule import KNATIVE
from pilotlight.lint.rules import RULES

INTRODUCTION: Final = """# Lint

This page is generated from the rules in `pilotlight/lint/`; a test keeps the two equal.

The linter reads any ScaledObject and Knative Service, and the Deployments, StatefulSets, LeaderWorkerSets and HPAs
beside them, whoever wrote them, and explains what is dangerous. Files are judged together: an HPA beside a ScaledObject
is found only when both are given. Nothing needs a cluster: `lint -f FILE-OR-FOLDER` is a verb of platformctl,
`pilotlight.lint.lint_files` the function behind it.

- **error**: refused by the API server or a webhook, or does something else than it says
- **warning**: dangerous: it works until the day it matters
- **info**: worth knowing

A finding in JSON has these keys, always all of them: `rule`, `severity`, `object`, `path`, `file`, `line`, `column`,
`message`, `fix`. Facts are those of KEDA 2.21, Knative Serving 1.15 and later, and Kubernetes 1.34.

To add a rule, write a function under `@rule(…)` in the file of its kind, and a bad and a good manifest in
`tests/platform/lint/`.
"""


def page() -> str:
    rows, sections = "| rule | severity | of | what |\n|---|---|---|---|\n", ""
    for rule in RULES:
        kinds = ", ".join("Knative Service" if kind == KNATIVE else kind for kind in rule.kinds) or "any object"
        rows += f"| [{rule.id}](#{rule.id.lower()}) | {rule.severity} | {kinds} | {rule.title} |\n"
        title = rule.title[0].upper() + rule.title[1:]
        sections += f"## {rule.id}\n\n**{title}** ({rule.severity}). {rule.why}\n\n```yaml\n{rule.fix}\n```\n\n"
    return f"{INTRODUCTION}\n{rows}\n{sections}".rstrip("\n") + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
