"""The sandbox backends, one folder each, and the factory that chooses one."""
