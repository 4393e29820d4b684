"""One module per verb, each with a click command of the verb's name; `main.VERBS` lists them.

To add one: write commands/<group>/<verb>.py, add a line to that table and a section to docs/reference/cli.md
(a test compares).
"""
