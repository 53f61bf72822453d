"""The `remote` backend: sandboxes of executors, on this machine or others, over gRPC."""
