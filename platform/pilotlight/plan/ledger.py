"""Decision log of one plan() run: decisions with reasons, problems with source locations, requirements."""

from dataclasses import dataclass, field, replace

from pilotlight.plan.model import Decision, Requirement
from pilotlight.spec.model import Component, Role, Service
from pilotlight.spec.problems import Problems


def field_path(component: Component, name: str) -> str:
    """Return a path such as `spec.engine.minReplicas`; with an empty name that of the component."""
    return f"spec.{component.role}.{name}" if name else f"spec.{component.role}"


@dataclass
class DecisionLog:
    """Written by the stages, read once by plan(). No decision depends on it."""

    service: Service
    problems: Problems = field(default_factory=Problems)
    decisions: list[Decision] = field(default_factory=list)
    requirements: dict[tuple[str, str], Requirement] = field(default_factory=dict)
    variant: str = ""  # workload name of a canary variant; shown instead of the role, which both variants share

    def decide(self, role: Role | str, topic: str, value: object, reason: str) -> None:
        where = self.variant or role
        self.decisions.append(Decision(f"{where}: {topic}" if where else topic, str(value), reason))

    def for_variant(self, variant: str) -> "DecisionLog":
        """Return the same log, whose decisions carry the workload name of a canary variant."""
        return replace(self, variant=variant)

    def error(self, code: str, path: str, message: str) -> None:
        """Add an error once, even if two components have it."""
        if not any((each.code, each.path, each.message) == (code, path, message) for each in self.problems.items):
            self.problems.error(code, self.service.location(path), path, message)

    def warn(self, code: str, path: str, message: str) -> None:
        self.problems.warn(code, self.service.location(path), path, message)

    def require(self, requirement: Requirement) -> None:
        """Add a requirement; the first reason for a CRD or flag wins."""
        self.requirements.setdefault((requirement.kind, requirement.name), requirement)
