"""Persistent state of the embedded platform: one SQLite file."""

from pilotlight.targets.local.store.releases import live_manifests
from pilotlight.targets.local.store.schema import StoredRevision, StoredService
from pilotlight.targets.local.store.store import Store

__all__ = ["Store", "StoredRevision", "StoredService", "live_manifests"]
