"""Weights on their way to a GPU without the help of a framework, so that they can travel while one is imported."""
