"""One-time jobs: a model is started, asked about every file of a folder, and ended. What others may use is in jobs.py.

jobs (start, look, cancel) ─> a process of its own ─> runner (start, wait, stop the model) ─> files (each file once)
                                                     folders (storage), scoring (metrics), model (values)
"""
