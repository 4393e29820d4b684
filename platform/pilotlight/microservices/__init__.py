"""Inference microservices: one model behind one URL, started, queried, monitored and stopped on any platform."""
