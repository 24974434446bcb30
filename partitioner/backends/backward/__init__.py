"""Forward and backward on lanes: one autograd function around each section of a call, run back on the lanes of its tasks."""
