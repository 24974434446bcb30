"""How much damage does the verifier notice? Random right programs, damaged one instruction at a time.

    python benchmarks/mutation_score.py
    python benchmarks/mutation_score.py --programs 10000 --first 500

A mutant is *reported* if the verifier finds a fault, *equivalent* if it finds none and an independent oracle proves that the
mutant computes the same with every timing, and *missed* otherwise. The first 500 programs are those of
``tests/test_mutation.py``. Exits with 1 if anything is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from _common import print_machine

from mutations import score


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=500, help="how many programs to damage")
    parser.add_argument("--first", type=int, default=0, help="seed of the first one")
    options = parser.parse_args(words)
    print_machine()
    result = score(range(options.first, options.first + options.programs))
    print(result)
    for seed, name, why, mutant in result.missed:
        print(f"\nmissed: seed {seed}, {name}: {why}\n{mutant}")
    return 1 if result.missed else 0


if __name__ == "__main__":
    sys.exit(main())
