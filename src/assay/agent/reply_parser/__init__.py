"""Parse model replies into actions."""
