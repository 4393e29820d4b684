"""Environments of Python models: what they require, and its installation by uv."""
