"""The `assay` command: a module for each command, and the display of results."""
