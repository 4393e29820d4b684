"""Rendering: render(plan) → manifests, values_of(plan) → values of the Helm chart. No decisions are made here.

plan → values.template_values → manifests (which template, when) → templates (fill) → manifests
"""

from pilotlight.render.manifests import render, values_of

__all__ = ["render", "values_of"]
