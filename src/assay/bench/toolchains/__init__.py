"""What each language needs here to run its tests in a sandbox without network."""
