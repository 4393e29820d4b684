"""Idle replicas leave their GPU and keep their process: by themselves, by their engine, or by the CUDA driver."""
