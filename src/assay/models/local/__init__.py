"""The embedded model: a small real code model that runs on this machine, with no key."""
