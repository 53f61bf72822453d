"""The sandbox over any transport: service, client, streams."""
