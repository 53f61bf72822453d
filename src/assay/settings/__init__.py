"""Settings, one module for each section; the only reader of the environment."""
