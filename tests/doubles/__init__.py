"""Doubles for tests."""
