"""How requests to a sandbox and their results look on the way to another process."""
