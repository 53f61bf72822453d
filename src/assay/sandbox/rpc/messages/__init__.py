"""Contracts as protobuf messages, both ways; knows no transport."""
