"""How long does it take, and how much memory, to plan models of 70 and 405 billion parameters on 8 to 128 devices?

    python benchmarks/huge.py
    python benchmarks/huge.py --policies fit --devices 32

Llama's configs by transformers, in bfloat16 on the meta device: no weight is ever allocated. Each row is a process of its own.
Seconds are those of the wall clock, and in brackets those of the processor, which count where a machine does other work, too.
The peak is that of the whole process, torch and transformers included. The aim is a minute and 4 GiB.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from _common import print_machine, table

CONFIGS: dict[str, dict[str, int]] = {
    "70B": {
        "hidden_size": 8192,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "intermediate_size": 28672,
        "vocab_size": 128256,
    },
    "405B": {
        "hidden_size": 16384,
        "num_hidden_layers": 126,
        "num_attention_heads": 128,
        "num_key_value_heads": 8,
        "intermediate_size": 53248,
        "vocab_size": 128256,
    },
}
MEMORY = "80GiB"
TOKENS = 2048
HEADER = ("model", "devices", "policy", "trace s", "plan s", "all s", "peak MiB", "ops", "tasks", "used", "fullest", "file KiB")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="70B,405B")
    parser.add_argument("--devices", default="8,32,128")
    parser.add_argument("--policies", default="fit,chain,list")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        model, devices, policy = options.one.split(",")
        print(json.dumps(planned_once(model, int(devices), policy)))
        return
    print_machine()
    rows = [
        measured(model, devices, policy)
        for model in options.models.split(",")
        for devices in options.devices.split(",")
        for policy in options.policies.split(",")
    ]
    print(table(HEADER, rows))


def measured(model: str, devices: str, policy: str) -> list[str]:
    """One row, from a process of its own."""
    command = [sys.executable, __file__, "--one", f"{model},{devices},{policy}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        error = next((line for line in reversed(lines) if re.match(r"[\w.]+Error: ", line)), lines[-1])
        print(f"{model} on {devices} devices by {policy}: {error.partition(': ')[2]}")
        return [model, devices, policy, "refused", *["-"] * (len(HEADER) - 4)]
    return [model, devices, policy, *json.loads(done.stdout.splitlines()[-1])]


def planned_once(name: str, count: int, policy: str) -> list[str]:
    """Plan one model for devices that need not be there."""
    import torch

    llama = _llama()
    from partitioner import plans as flow
    from partitioner.driver import planned
    from partitioner.ir.plan import resident_bytes
    from partitioner.ir.saving import saved

    with torch.device("meta"):
        model = llama.LlamaForCausalLM(llama.LlamaConfig(**CONFIGS[name])).to(torch.bfloat16).eval()
    spent: dict[str, tuple[float, float]] = {}
    flow.graphs_of_call = _clocked("trace", flow.graphs_of_call, spent)
    planning = _clocked("all", planned, spent)
    machine = {"devices": [{"name": f"gpu{n}", "device": f"cuda:{n}", "memory": MEMORY} for n in range(count)]}
    call = {"input_ids": torch.zeros(1, TOKENS, dtype=torch.long), "use_cache": False}
    with torch.no_grad():
        plan = planning(model, example_kwargs=call, spec=machine, policy=policy)
    assert all(each.is_meta for each in model.state_dict().values())
    spent["plan"] = tuple(a - b for a, b in zip(spent["all"], spent["trace"], strict=True))  # type: ignore[assignment]
    state = resident_bytes(plan)
    return [
        *(f"{wall:.1f} ({processor:.1f})" for wall, processor in (spent[each] for each in ("trace", "plan", "all"))),
        f"{_peak():.0f}",
        str(len(plan.graph.ops)),
        str(len(plan.tasks.tasks)),
        str(len(state)),
        f"{max(state.values()) / 2**30:.1f} GiB",
        f"{len(saved([plan]).text()) / 1024:.0f}",
    ]


def _llama() -> Any:
    """transformers, also beside a torchvision whose compiled ops cannot be loaded: no Llama needs it."""
    try:
        import torchvision  # noqa: F401
    except Exception:
        for part in [each for each in sys.modules if each.partition(".")[0] == "torchvision"]:
            del sys.modules[part]
        sys.modules["torchvision"] = None  # type: ignore[assignment]
    import transformers

    return transformers


def _clocked(name: str, function: Callable[..., Any], spent: dict[str, tuple[float, float]]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        wall, processor = time.perf_counter(), time.process_time()
        result = function(*args, **kwargs)
        spent[name] = time.perf_counter() - wall, time.process_time() - processor
        return result

    return run


def _peak() -> float:
    """The most memory that this process has had, in MiB."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else float("nan")


if __name__ == "__main__":
    main()
