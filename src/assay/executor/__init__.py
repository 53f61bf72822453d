"""The gRPC server in front of a sandbox backend."""
