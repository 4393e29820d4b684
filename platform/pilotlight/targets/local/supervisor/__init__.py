"""Process supervisor of the embedded platform: starts, probes, limits and ends replicas."""
