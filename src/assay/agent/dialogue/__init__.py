"""A conversation whose model can run code: one turn after the other, in one notebook."""
