"""Words that are not known: which one was probably meant.

Knows no torch, and documents of a million names are told their slips as fast as others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Any, TypeVar

from partitioner.errors import SpecError
from partitioner.ir.units import quote

Word = TypeVar("Word", bound=str)

MOST_COMPARED = 2_000
MOST_LISTED = 24
LONGEST = 60


def hint(word: object, words: Collection[str]) -> str:
    """How to go on from a word that is not known: the one that was probably meant, or all of them if they are few.

    Case does not count. One slip leaves the first or the second half of a word as it was, so where words are many, only those
    that share one of them are compared.

    >>> hint("Laod", ["load", "store"]), hint("x", ["load", "store"])
    ('; did you mean "load"?', '; there are load, store')
    """
    if isinstance(word, str):
        likely = words if len(words) <= MOST_COMPARED else islice(_alike(word, words), MOST_COMPARED)
        by_fold = {each.casefold(): each for each in likely}
        for best in get_close_matches(word[:200].casefold(), by_fold, n=1):
            return f"; did you mean {quote(by_fold[best])}?"
    return f"; there are {', '.join(printable(each[:LONGEST]) for each in words)}" if 0 < len(words) <= MOST_LISTED else ""


def _alike(word: str, words: Collection[str]) -> list[str]:
    half, length = max(1, (len(word) - 1) // 2), len(word)
    head, tail = word[:half], word[-half:]
    return [each for each in words if -2 < len(each) - length < 2 and (each.startswith(head) or each.endswith(tail))]


def few(words: Sequence[str], most: int = 3) -> str:
    """The first of some words, and how many more there are.

    >>> few(["a", "b", "c", "d"])
    'a, b, c and 1 more'
    """
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return f"{', '.join(words[:most])}{more}"


def first_lines(lines: Sequence[str], most: int = 10) -> list[str]:
    """The first of some lines, and one that says how many more there are.

    >>> first_lines(["a", "b", "c"], most=2)
    ['a', 'b', '... and 1 more']
    """
    more = [f"... and {len(lines) - most} more"] if len(lines) > most else []
    return [*lines[:most], *more]


def one_of(what: str, word: object, words: Collection[Word]) -> Word:
    """``word``, if it is one of ``words``.

    Raises:
        SpecError: it is not; with a hint.

    >>> one_of("objective", "latency", ("latency", "throughput"))
    'latency'
    """
    for each in words if isinstance(word, str) else ():
        if each == word:
            return each
    raise SpecError(f"{what}: {quote(word)} is not known{hint(word, words)}")


def printable(text: str) -> str:
    """A user's name as a report shows it, for it may hold anything.

    >>> printable("a\\nb")
    'a?b'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def refuse_mistaken(names: Iterable[str], function: Callable[..., Any]) -> None:
    """Tell a misspelt argument of ``function`` by its right name.

    Raises:
        SpecError: there is one.
    """
    known = [one for one in inspect.signature(function).parameters if one != "mistaken"]
    for name in names:
        raise SpecError(f"{function.__name__}() has no argument {name}{hint(name, known)}")
