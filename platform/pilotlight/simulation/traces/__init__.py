"""Readers of traces: log files, CSV, public data sets, recorded figures of services; generators of artificial ones."""
