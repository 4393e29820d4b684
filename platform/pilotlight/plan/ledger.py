"""What one run of plan() writes down on its way: decisions with their reasons, problems with their places, needs."""

from dataclasses import dataclass, field, replace

from pilotlight.plan.model import Decision, Requirement
from pilotlight.spec.model import Component, Role, Service
from pilotlight.spec.problems import Problems


def field_path(component: Component, name: str) -> str:
    """`spec.engine.minReplicas`, as the document writes it; empty name: the component itself."""
    return f"spec.{component.role}.{name}" if name else f"spec.{component.role}"


@dataclass
class Ledger:
    """Filled by the deciding functions, read once by plan(). Nothing in it is read back to decide."""

    service: Service
    problems: Problems = field(default_factory=Problems)
    decisions: list[Decision] = field(default_factory=list)
    requirements: dict[tuple[str, str], Requirement] = field(default_factory=dict)
    side: str = ""  # a workload beside the main one of its role: stands where the role would, which both have

    def decide(self, role: Role | str, topic: str, value: object, reason: str) -> None:
        where = self.side or role
        self.decisions.append(Decision(f"{where}: {topic}" if where else topic, str(value), reason))

    def of_side(self, side: str) -> "Ledger":
        """The same ledger, in which decisions carry the name of a workload that is one side of a canary."""
        return replace(self, side=side)

    def error(self, code: str, path: str, message: str) -> None:
        """Once, also where two components of the service have it."""
        if not any((each.code, each.path, each.message) == (code, path, message) for each in self.problems.found):
            self.problems.error(code, self.service.place(path), path, message)

    def warn(self, code: str, path: str, message: str) -> None:
        self.problems.warn(code, self.service.place(path), path, message)

    def need(self, requirement: Requirement) -> None:
        """The first reason given for a need is kept: one line per CRD or flag."""
        self.requirements.setdefault((requirement.kind, requirement.name), requirement)
