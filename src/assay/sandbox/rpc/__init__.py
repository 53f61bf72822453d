"""The sandbox RPC over any transport: service, client and streams."""
