"""Generator of docs/lint.md from the table of rules: `python -m pilotlight.lint.docs > docs/lint.md`."""

import sys
from typing import Final

from pilotlight.lint.rule import KNATIVE, Rule
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

To add a rule, write a function under `@rule(…)` in the file of its kind, a line in `table.py`, and a bad and a good
manifest in `tests/platform/lint/`.
"""


def page() -> str:
    return f"{INTRODUCTION}\n{_overview()}\n{''.join(map(_section, RULES))}".rstrip("\n") + "\n"


def _overview() -> str:
    rows = [
        f"| [{each.id}](#{each.id.lower()}) | {each.severity} | {_kinds(each)} | {each.title} |\n" for each in RULES
    ]
    return "| rule | severity | of | what |\n|---|---|---|---|\n" + "".join(rows)


def _section(rule: Rule) -> str:
    title = rule.title[0].upper() + rule.title[1:]
    return f"## {rule.id}\n\n**{title}** ({rule.severity}). {rule.why}\n\n```yaml\n{rule.fix}\n```\n\n"


def _kinds(rule: Rule) -> str:
    names = ["Knative Service" if kind == KNATIVE else kind for kind in rule.kinds]
    return ", ".join(names) or "any object"


if __name__ == "__main__":
    sys.stdout.write(page())
