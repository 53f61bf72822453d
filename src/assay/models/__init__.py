"""Model providers, the embedded model, and the choice between them."""
