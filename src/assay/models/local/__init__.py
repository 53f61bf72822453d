"""The embedded model: a small code model that runs on this machine, without a key."""
