"""What there is to try on the simulated accelerator, for those who have none."""

from __future__ import annotations

CASES = ("towers", "state", "pinned", "callers", "threads", "memory", "failing", "what_is_missing_is_seen")
"""Functions of `cases.py`."""

MODELS = ("torchvision/googlenet", "transformers/bert", "transformers/clip", "transformers/t5", "transformers/lxmert")
"""Models of the zoo."""
