"""Failure memory: stores failures with their fixes and provides lessons to later runs."""
