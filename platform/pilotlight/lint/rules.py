"""Table of all rules, in the order of their identifiers.

A rule is a function under `@rule(id)` in the module of its kind, and an entry of rules.yaml.
"""

from typing import Final

from pilotlight.lint import keda_scaling, keda_triggers, knative_scaling, knative_service, workloads
from pilotlight.lint.rule import Rule

MODULES: Final = (keda_triggers, keda_scaling, knative_scaling, knative_service, workloads)
RULES: Final[tuple[Rule, ...]] = tuple(
    sorted(
        (each for module in MODULES for each in vars(module).values() if isinstance(each, Rule)),
        key=lambda rule: rule.id,
    )
)
