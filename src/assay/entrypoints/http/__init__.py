"""The HTTP API of `assay serve`, and the web page beside it."""
