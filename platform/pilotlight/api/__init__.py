"""The control API: HTTP on loopback in the control process, or on its own by `platformctl api`. app.py is the entry."""
