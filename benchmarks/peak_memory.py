"""How much memory a training step takes: eager, TorchInductor and litz, one after the other in one process.

    python -m benchmarks.peak_memory [--only NAME ...] [--peers eager inductor litz] [--dtype bfloat16] [--out FILE]

The most bytes that torch has allocated at a time during a step, less what lies there before it (parameters), in MiB;
and what there is once the forward has ended: its outputs and what is saved for the backward. Needs a CUDA device.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

MIB = 2**20
Inputs = dict[str, torch.Tensor]


@dataclass
class Row:
    """One model's figures, in MiB, by peer."""

    model: str
    peak: dict[str, float] = field(default_factory=dict)
    saved: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def language(name: str, batch: int, length: int, **settings: Any) -> tuple[torch.nn.Module, Inputs]:
    """A language model of transformers by the name of its configuration, and a batch that is its own label."""
    import transformers

    config = getattr(transformers, f"{name}Config")(**settings)
    model = getattr(transformers, f"{name}{'ForMaskedLM' if name == 'Bert' else 'ForCausalLM'}", None)
    model = transformers.GPT2LMHeadModel if name == "GPT2" else model
    tokens = torch.randint(0, config.vocab_size, (batch, length))
    return model(config), {"input_ids": tokens, "labels": tokens}


def images(name: str, batch: int, **settings: Any) -> tuple[torch.nn.Module, Inputs]:
    import transformers

    config = getattr(transformers, f"{name}Config")(num_labels=1000, **settings)
    model = getattr(transformers, f"{name}ForImageClassification")(config)
    return model, {"pixel_values": torch.randn(batch, 3, 224, 224), "labels": torch.randint(0, 1000, (batch,))}


NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
_SMALL = {"hidden_size": 768, "intermediate_size": 2048, "use_cache": False, "num_key_value_heads": 4}
MODELS: dict[str, Callable[[], tuple[torch.nn.Module, Inputs]]] = {
    "gpt2": lambda: language("GPT2", 8, 1024, use_cache=False, **NO_DROPOUT),
    "gpt2 with dropout": lambda: language("GPT2", 8, 1024, use_cache=False),
    "bert": lambda: language("Bert", 16, 384),
    "llama-like": lambda: language(
        "Llama", 4, 1024, num_hidden_layers=12, num_attention_heads=12, vocab_size=32000, **_SMALL
    ),
    "gemma-like": lambda: language(
        "Gemma2", 4, 1024, num_hidden_layers=8, num_attention_heads=8, head_dim=96, vocab_size=64000, **_SMALL
    ),
    "resnet50": lambda: images("ResNet", 32),
    "vit": lambda: images("ViT", 32),
}


def measure(name: str, peers: Sequence[str], dtype: torch.dtype, loss_only: bool) -> Row:
    torch.manual_seed(0)
    row = Row(name)
    made, inputs = MODELS[name]()
    inputs = {key: x.to("cuda", dtype if x.is_floating_point() else x.dtype) for key, x in inputs.items()}
    for peer in peers:
        torch._dynamo.reset()
        model = copy.deepcopy(made).to("cuda", dtype).train()
        try:
            row.peak[peer], row.saved[peer] = step_memory(model, peer, inputs, loss_only)
        except Exception as error:
            row.failed[peer] = f"{type(error).__name__}: {error}"[:300]
        del model
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
    return row


def step_memory(model: torch.nn.Module, peer: str, inputs: Inputs, loss_only: bool) -> tuple[float, float]:
    """(the peak of a step, what the forward leaves), beside the parameters. loss_only: nobody holds the scores."""

    def loss_of(**inputs: torch.Tensor) -> Any:
        out = model(**inputs)
        return (out.loss,) if loss_only else (out.loss, out.logits)

    run = loss_of if peer == "eager" else torch.compile(loss_of, backend=peer)
    for _ in range(3):
        out = None
        model.zero_grad(set_to_none=True)
        gc.collect()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        out = run(**inputs)
        saved = torch.cuda.memory_allocated() - before
        out[0].backward()
        torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / MIB, saved / MIB


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table, a line as soon as it is measured; write JSON to --out."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peak_memory", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--peers", nargs="*", default=["eager", "inductor", "litz"])
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--loss-only", action="store_true", help="the compiled function returns no scores")
    parser.add_argument("--out")
    args = parser.parse_args(argv)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; MiB: peak of a step, left by the forward")
    print(f"{'model':20}" + "".join(f"{peer:>22}" for peer in args.peers))
    rows = []
    for name in args.only:
        row = measure(name, args.peers, getattr(torch, args.dtype), args.loss_only)
        rows.append(asdict(row))
        cells = (f"{row.peak[p]:12.0f}{row.saved[p]:10.0f}" if p in row.peak else f"{'failed':>22}" for p in args.peers)
        print(f"{name:20}{''.join(cells)}", flush=True)
        for peer, problem in row.failed.items():
            print(f"    {peer}: {problem}", flush=True)
        if args.out:
            with open(args.out, "w") as file:
                json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}, file)


if __name__ == "__main__":
    main()
