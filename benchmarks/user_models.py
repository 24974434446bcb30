"""Models as users write them, from the kinds of repository that a library never sees: U-Nets, recommenders, graph networks,
sequence models, generators, and the habits that come with them (views, in-place ops, counters, dicts in and out, shared
layers, random numbers, packed sequences, loops over a list). The models are in `_models/`, a file for each kind.

    USER_MODELS["unet"].build()             an nn.Module in eval mode, the same values every time
    USER_MODELS["unet"].inputs(batch=3)     (args, kwargs) for one call

`benchmarks/corpus.py` runs them; `python benchmarks/user_models.py` lists them.
"""

from __future__ import annotations

from _models import graphs, habits, images, sequences, tables
from _models.registry import USER_MODELS

__all__ = ["USER_MODELS", "graphs", "habits", "images", "sequences", "tables"]

if __name__ == "__main__":
    print(*USER_MODELS, sep="\n")
