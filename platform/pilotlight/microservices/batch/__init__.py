"""Batch jobs: start a model, run it on every file of a folder, and stop it. jobs.py is the entry.

jobs (start, status, cancel) ─> process of the job ─> runner (start, wait for, stop the model) ─> file_inference (files)
"""
