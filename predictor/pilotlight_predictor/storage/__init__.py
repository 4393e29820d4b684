"""Download of models: from URIs to local files.

    uri ─> stores (one module per kind, one table) ─> transfer (parallel parts, resume) ─> cache | into | sync

A server with local models imports none of it; `uri` is light, `fetcher` and what follows it are not.
"""
