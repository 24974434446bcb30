"""From a graph to the stages of a pipeline: where it is cut, in which order ranks run what, and one stage as a module."""
