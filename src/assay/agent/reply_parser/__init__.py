"""Parses model replies into actions."""
