"""The `assay` command: one module for each command, and how results are shown."""
