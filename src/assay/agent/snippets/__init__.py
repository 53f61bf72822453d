"""Functions of accepted files that can serve other goals: found, cut out, tested."""
