"""Inference microservices: one model behind one address, started, asked, watched and stopped on any platform."""
