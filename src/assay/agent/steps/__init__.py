"""The steps of a run, one module each."""
