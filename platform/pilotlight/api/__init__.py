"""The control API: HTTP on loopback in the control process, or standalone by `platformctl api`."""
