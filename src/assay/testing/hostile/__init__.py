"""Attacks that no sandbox may let through, each with the proof that its detector works."""
