"""The nouns, in the order in which a model passes through them: Graph, Tasks, Assignment, Program, Timeline.

Each is a frozen value, knows nothing of the stages that make it, and prints as text.
"""
