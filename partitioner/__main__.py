"""``python -m partitioner``."""

from partitioner.cli import main

main()
