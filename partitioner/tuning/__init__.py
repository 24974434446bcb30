"""Which plan of a call is the fastest: what is tried, how plans are run in turns, and which is kept."""
