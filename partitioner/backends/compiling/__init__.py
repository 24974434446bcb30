"""Tasks as one function each: what a lane runs between two hand-offs without the interpreter, or as other kernels."""
