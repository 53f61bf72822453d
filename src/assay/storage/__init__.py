"""Storage of runs, sessions, certificates and keys on disk."""
