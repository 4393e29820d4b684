"""Text of docs/reference/lint.md, made from the rules of lint."""

from typing import Final

from pilotlight.lint import RULES, Rule
from pilotlight.lint.rule import KNATIVE

INTRODUCTION: Final = """# Lint rules

`platformctl lint -f FILE-OR-FOLDER` finds dangerous settings in ScaledObjects, Knative Services, Deployments,
StatefulSets, LeaderWorkerSets and HPAs, whatever tool created them. It needs no cluster and checks the files
together: an HPA beside a ScaledObject is found only if both are given.

- **error**: rejected by the API server or a webhook, or has another effect than written
- **warning**: works now, and fails under load or during an outage
- **info**: worth knowing

A finding in JSON always has `rule`, `severity`, `object`, `path`, `file`, `line`, `column`, `message` and `fix`.
Rules reflect KEDA 2.21, Knative Serving 1.15 and later, and Kubernetes 1.34. The Python function is
`pilotlight.lint.lint_files`.

PL430, PL470, PL472 and PL488 are not reported for objects that `render` wrote (label `pilotlight.dev/service`): the
plan decides these for the cluster, and `explain` gives the reason.

"""


def row(rule: Rule) -> str:
    kinds = ", ".join("Knative Service" if kind == KNATIVE else kind for kind in rule.text.kinds) or "any object"
    return f"| [{rule.id}](#{rule.id.lower()}) | {rule.text.severity} | {kinds} | {rule.text.title} |\n"


def section(rule: Rule) -> str:
    title = f"{rule.text.title[0].upper()}{rule.text.title[1:]}"
    return f"\n## {rule.id}\n\n**{title}** ({rule.text.severity}). {rule.text.why}\n\n```yaml\n{rule.text.fix}\n```\n"


def page() -> str:
    table = "| rule | severity | kind | finding |\n|---|---|---|---|\n" + "".join(map(row, RULES))
    return INTRODUCTION + table + "".join(map(section, RULES))
