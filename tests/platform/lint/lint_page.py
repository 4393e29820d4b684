"""Text of docs/reference/lint.md, made from the rules of lint."""

from typing import Final

from pilotlight.lint import RULES, Rule
from pilotlight.lint.rule import KNATIVE

INTRODUCTION: Final = """# Lint

This page is generated from `platform/pilotlight/lint/rules.yaml`; a test keeps the two equal.

The linter reads any ScaledObject and Knative Service, and the Deployments, StatefulSets, LeaderWorkerSets and HPAs
beside them, whoever wrote them, and explains what is dangerous. Files are judged together: an HPA beside a ScaledObject
is found only when both are given. Nothing needs a cluster: `lint -f FILE-OR-FOLDER` is a verb of platformctl,
`pilotlight.lint.lint_files` the function behind it.

- **error**: refused by the API server or a webhook, or does something else than it says
- **warning**: dangerous: it works until the day it matters
- **info**: worth knowing

A finding in JSON has these keys, always all of them: `rule`, `severity`, `object`, `path`, `file`, `line`, `column`,
`message`, `fix`. Facts are those of KEDA 2.21, Knative Serving 1.15 and later, and Kubernetes 1.34.

PL430, PL470, PL472 and PL488 are not said of objects that `render` wrote (label `pilotlight.dev/service`): planning
decides these by what it knows of the cluster, and `explain` gives the reason. Nothing else is said of them either,
unless the document asks for it.

To add a rule, write its entry in `rules.yaml`, a function under `@rule(id)` in the module of its kind, and a bad and a
good manifest in `tests/platform/lint/`; then `make docs`.

"""


def row(rule: Rule) -> str:
    kinds = ", ".join("Knative Service" if kind == KNATIVE else kind for kind in rule.text.kinds) or "any object"
    return f"| [{rule.id}](#{rule.id.lower()}) | {rule.text.severity} | {kinds} | {rule.text.title} |\n"


def section(rule: Rule) -> str:
    title = f"{rule.text.title[0].upper()}{rule.text.title[1:]}"
    return f"\n## {rule.id}\n\n**{title}** ({rule.text.severity}). {rule.text.why}\n\n```yaml\n{rule.text.fix}\n```\n"


def page() -> str:
    table = "| rule | severity | of | what |\n|---|---|---|---|\n" + "".join(map(row, RULES))
    return INTRODUCTION + table + "".join(map(section, RULES))
