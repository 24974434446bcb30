"""What a job is expected to take before there is one: seconds, bytes and bounds of each rank, and the best way to work."""
