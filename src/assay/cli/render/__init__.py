"""How a run looks: in a terminal while it goes on, when it is over, and as JSON."""
