"""Gateway: holds, splits and forwards requests; the same code on one machine and in a cluster."""
