"""Deployment targets of manifests: one machine, a cluster; all behind the same protocol."""
