"""What ops and machines are measured to take: real tensors, real kernels, a clock, and a cache on disk.

    costs = profiled(graph, estimate(graph, machine, state), mode="auto")

`signature` says what an op is beside its name, `tensors` makes its arguments, `clock` times it, `cache` remembers it, `choose`
tells which ops matter, `measure` puts these together. `calibrate` measures the machine itself. The model is not touched: its
tensors are neither read nor written, its modules are not called, and random generators and numbers of threads are as they were.
"""
