"""Explains what is dangerous in ScaledObjects, Knative Services, and the Deployments and HPAs beside them; anybody's.

Not on the way of a deployment: `validate` and `render` judge our documents, this judges manifests, ours among them.
"""

from pilotlight.lint.check import lint
from pilotlight.lint.files import lint_files
from pilotlight.lint.rule import Finding, Rule, Severity
from pilotlight.lint.table import RULES

__all__ = ["RULES", "Finding", "Rule", "Severity", "lint", "lint_files"]
