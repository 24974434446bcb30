"""torchrun, of which ranks are forks: what each of them would import is imported once, which is half of a short job."""

import sys

import torch._dynamo
import torch.distributed.pipelining  # noqa: F401
from torch.distributed.run import main

import partitioner.distributed  # noqa: F401

if __name__ == "__main__":
    main(["--run-path", "--start-method", "fork", *sys.argv[1:]])
