"""Automated canaries: analysed at intervals, promoted step by step, rolled back when they are worse."""
