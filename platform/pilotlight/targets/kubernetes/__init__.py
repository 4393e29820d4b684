"""A cluster as a target: manifests are applied to it, and what it says of them is told as on one machine."""
