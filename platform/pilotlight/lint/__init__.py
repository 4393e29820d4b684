"""Linter for ScaledObjects, Knative Services, and the Deployments and HPAs related to them.

Checks any Kubernetes manifests; not part of a deployment, whose documents `validate` and `render` check.
"""

from pilotlight.lint.linter import lint, lint_files
from pilotlight.lint.rule import Finding, Rule, Severity
from pilotlight.lint.rules import RULES

__all__ = ["RULES", "Finding", "Rule", "Severity", "lint", "lint_files"]
