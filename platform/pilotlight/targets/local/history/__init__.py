"""Recorded history of services: sampled by the control process, downsampled, kept for 24 hours in one SQLite file."""
