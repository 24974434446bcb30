"""``python -m partitioner``."""

from partitioner.cli.main import main

main()
