"""Python SDK: verbs of platformctl as functions, models from classes and notebooks. `pilotlight` exports its names."""
