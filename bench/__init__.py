"""Pilotlight beside its peers on one machine: `python -m bench`. What is measured and how: docs/benchmarks.md."""
