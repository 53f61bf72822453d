"""Real servers on this machine that speak the wire formats and behave as a test tells them."""
