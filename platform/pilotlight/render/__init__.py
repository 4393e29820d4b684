"""Writing down: render(plan) → manifests, values_of(plan) → what the Helm chart is given. Nothing is decided here.

plan → values.view → registry (which template, when) → templates (fill) → manifests
"""

from pilotlight.render.objects import render, values_of

__all__ = ["render", "values_of"]
