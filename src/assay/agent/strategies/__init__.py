"""The ways to make an attempt."""
