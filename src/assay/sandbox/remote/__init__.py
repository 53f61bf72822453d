"""The backend `remote`: sandboxes of executors, on this machine or on others, over gRPC."""
