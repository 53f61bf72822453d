"""What lives longer than a request: people, their keys, conversations, runs, who hears of them."""
