"""Conversion between contracts and protobuf messages; independent of the transport."""
