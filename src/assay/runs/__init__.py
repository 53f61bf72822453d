"""Start, resume, replay and re-verify runs."""
