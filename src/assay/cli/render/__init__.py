"""The display of a run: live in a terminal, as a summary, and as JSON."""
