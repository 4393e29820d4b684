"""Canaries that judge themselves: measured at intervals, moved step by step, taken back when they are worse."""
