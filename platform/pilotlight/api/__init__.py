"""The control API of the embedded platform: HTTP on loopback, behind it the engine. Used by `platformctl`."""

from pilotlight.api.app import make_app

__all__ = ["make_app"]
