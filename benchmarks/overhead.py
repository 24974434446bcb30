"""What does a partitioned module cost that partitions nothing? One lane beside eager; it should never be slower.

    python benchmarks/overhead.py
    python benchmarks/overhead.py --quick
    python benchmarks/overhead.py --threads 1 --models mlp-tiny,gpt2

Everything runs on the caller's thread. With policy ``single`` what is measured is guards and generated code against the
modules' own forward: tracing inlines modules, which saves more than guards cost. Where nobody names a policy, a short call is
measured when the model is partitioned, and made with TorchScript's functions or as it is, if that is faster.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from _common import Ratio, Way, alternate, milliseconds, print_machine, same_weights, table
from _corpus_models import CORPUS, zoo
from torch import nn

from partitioner import Parallel, partition

AIM = 1.00

Case = tuple[nn.Module, tuple[Any, ...], Mapping[str, Any]]


def main(words: Sequence[str] | None = None) -> None:
    options = arguments(words)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    print_machine()
    rows, slower = [], []
    for name in options.models:
        case = CASES[name](options.quick)
        parallel, found = race(case, options.rounds)
        single, default = (Ratio.of(found[way], found["eager"]) for way in ("single", "default"))
        rows.append([name, len(parallel.graph.ops), *map(milliseconds, found.values()), single, default])
        slower += [name] if default.median > AIM else []
    print(table(["model", "ops", "eager ms", "single ms", "default ms", "single / eager (quartiles)", "default / eager"], rows))
    print(f"\nby default slower than eager: {', '.join(slower) or 'none'}")


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small inputs and few rounds: shows that it runs, no more")
    parser.add_argument("--rounds", type=int, help="turns of each side; 25, or 3 with --quick")
    parser.add_argument("--threads", type=int, help="threads that an op may use; as many as torch chooses if left out")
    parser.add_argument("--models", type=lambda text: text.split(","), default=list(CASES), help=", ".join(CASES))
    options = parser.parse_args(words)
    options.rounds = options.rounds or (3 if options.quick else 25)
    return options


def race(case: Case, rounds: int) -> tuple[Parallel, dict[str, list[float]]]:
    model, args, kwargs = case
    with torch.inference_mode():
        single, default = (
            partition(same_weights(model), ["cpu"], example_inputs=args, example_kwargs=kwargs, policy=policy)
            for policy in ("single", None)
        )
        calls = {"eager": model, "single": single, "default": default}
        ways = {name: Way(partial(call, *args, **kwargs)) for name, call in calls.items()}
        return single, alternate(ways, rounds, shortest=0.05)


# The models -----------------------------------------------------------------------------------------------------------


def tiny_mlp(_quick: bool) -> Case:
    """Thirty-two ops of a few microseconds each: nothing but overhead."""
    layers = (layer for _ in range(16) for layer in (nn.Linear(16, 16), nn.ReLU()))
    return nn.Sequential(*layers).eval(), (torch.randn(4, 16),), {}


def recurrent(_quick: bool) -> Case:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(64, 64, num_layers=2, batch_first=True), nn.Linear(64, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.lstm(x)[0])

    return Tagger().eval(), (torch.randn(8, 32, 64),), {}


def torchvision(name: str) -> Callable[[bool], Case]:
    def make(quick: bool) -> Case:
        options = {"init_weights": False} if name == "googlenet" else {}
        model = zoo.import_torchvision().models.get_model(name, weights=None, **options).eval()
        side = 64 if quick else 224
        return model, (torch.randn(1, 3, side, side),), {}

    return make


def language(name: str) -> Callable[[bool], Case]:
    """Four layers of width 256, on 64 tokens."""

    def make(quick: bool) -> Case:
        transformers = zoo.import_transformers()
        words = {"vocab_size": 1000, "use_cache": False}
        if name == "bert":
            sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 4}
            model = transformers.BertModel._from_config(transformers.BertConfig(**words, **sizes))
        else:
            model = transformers.GPT2Model._from_config(transformers.GPT2Config(**words, n_embd=256, n_layer=4, n_head=4))
        return model.eval(), (), {"input_ids": torch.randint(1000, (1, 16 if quick else 64))}

    return make


def corpus(name: str) -> Callable[[bool], Case]:
    return lambda _quick: (CORPUS[name].build(), *CORPUS[name].inputs(batch=8))


CASES: dict[str, Callable[[bool], Case]] = {
    "mlp-tiny": tiny_mlp,
    "lstm": recurrent,
    "resnet18": torchvision("resnet18"),
    "googlenet": torchvision("googlenet"),
    "mobilenet_v3_small": torchvision("mobilenet_v3_small"),
    "shufflenet_v2_x0_5": torchvision("shufflenet_v2_x0_5"),
    "bert": language("bert"),
    "gpt2": language("gpt2"),
    "unet": corpus("user/unet"),
    "dlrm": corpus("user/dlrm"),
    "nano_gpt": corpus("user/nano_gpt"),
    "graph_convolution": corpus("user/graph_convolution"),
}

if __name__ == "__main__":
    main()
