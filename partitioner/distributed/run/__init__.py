"""What ranks do at each step: forward, backward, sums over ranks, and nothing wrong without a word."""
