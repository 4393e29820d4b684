"""What a mode and a target do not support, as tables that plan() reads.

docs/reference/manifests.md and docs/how-to/targets.md show all of them.
"""
