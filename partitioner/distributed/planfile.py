"""Plan files of jobs: a `SavedJob` as safe YAML, or as JSON where it is large, written whole and read from any bytes.

    JobPlan.save("job.yaml")  ->  write_job        jobplan.py decides what is written
    read_job("job.yaml")      ->  SavedJob         applied.py holds it against spec, model and ranks

Nothing in a file is code, and nothing is pickled.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from partitioner.errors import SpecError
from partitioner.ir.documents import faults_of, refused, write_whole
from partitioner.ir.saved_job import SavedJob
from partitioner.ir.units import format_size, quote
from partitioner.spec.distributed import DistributedSpec
from partitioner.spec.document import LARGEST_FILE, read_document

LARGEST_PLAN = 2**28
"""Bytes of a plan in JSON; one in YAML, which takes longer to read, stays under `LARGEST_FILE`."""

WIDTH = 110


def write_job(document: SavedJob, path: str | Path) -> None:
    """Write a document to a file, which takes the place of another one only once it is whole.

    Args:
        document: what is written.
        path: ends in ``.yaml`` or, for plans of more than 1 MiB, in ``.json``.

    Raises:
        SpecError: it cannot be written, or is too large for YAML.
    """
    write_whole(_text(document, Path(str(path))), path)


def _text(document: SavedJob, target: Path) -> str:
    """The document in ASCII, in the form that the file's name asks for."""
    suffix = target.suffix.lower()
    if suffix == ".json":
        return json.dumps(document.data(), indent=1) + "\n"
    if suffix not in (".yaml", ".yml"):
        raise SpecError(f"{quote(str(target))}: not the path of a plan; it ends in .yaml, .yml or .json")
    data = document.data()
    data["ranks"] = [_Line(row) for row in data["ranks"]]
    text = yaml.dump(data, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=WIDTH)
    if len(text) > LARGEST_FILE:
        size, most = format_size(len(text)), format_size(LARGEST_FILE)
        raise SpecError(f"{quote(str(target))}: the plan takes {size} in YAML, of which {most} are read; end the name in .json")
    return text


class _Line(dict[str, Any]):
    """A mapping that is written in one line."""


class _Dumper(yaml.SafeDumper):
    """Writes what `yaml.safe_load` reads, and knows lines."""


_Dumper.add_representer(_Line, lambda dumper, row: dumper.represent_mapping("tag:yaml.org,2002:map", row, flow_style=True))


def read_job(path: str | Path) -> SavedJob:
    """The document in a file that `JobPlan.save` wrote, or somebody edited.

    Args:
        path: a YAML file of at most 1 MiB, or a JSON file of at most 256 MiB.

    Raises:
        SpecError: the only error. It tells the first faults, each with its path in the document.
    """
    document = read_document(path, "plan", LARGEST_PLAN)
    try:
        found = SavedJob.model_validate_json(json.dumps(document, default=str))
        DistributedSpec.model_validate(found.distributed)
    except ValidationError as error:
        under = ("distributed",) if error.title == "DistributedSpec" else ()
        faults = faults_of(error, *under)
    except (TypeError, ValueError, RecursionError) as error:
        faults = [f"what no plan holds: {error}"]
    else:
        return found
    raise refused(quote(str(path)), "the plan of a job", faults)
