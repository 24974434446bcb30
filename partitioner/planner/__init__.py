"""Graph and Machine to Assignment: costs, constraints, tasks, and the policies that place them."""
