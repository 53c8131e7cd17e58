"""Whole models: eager, TorchInductor and litz in one process, in turn, on the device at hand.

    python -m benchmarks.models [--only NAME ...] [--peers eager inductor litz] [--out FILE]

For each model: the median time of a step for each peer, litz's first call and Inductor's in seconds, and the error of
each against eager. A first call counts dynamo's own work too, the same for both compilers.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
Step = Callable[[Any], list[torch.Tensor]]


@dataclass
class Row:
    """One model's figures. Times in milliseconds, first calls in seconds."""

    model: str
    dtype: str
    ms: dict[str, float] = field(default_factory=dict)
    first_call_s: dict[str, float] = field(default_factory=dict)
    error: dict[str, float] = field(default_factory=dict)


def gpt2(dtype: torch.dtype) -> tuple[torch.nn.Module, Step]:
    from transformers import GPT2Config, GPT2LMHeadModel

    batch, length = (8, 1024) if GPU else (1, 256)
    model = GPT2LMHeadModel(GPT2Config(use_cache=False)).to(DEVICE, dtype).eval()
    tokens = torch.randint(0, 50257, (batch, length), device=DEVICE)

    def step(run: Any) -> list[torch.Tensor]:
        with torch.no_grad():
            return [run(input_ids=tokens).logits]

    return model, step


def gpt2_training(dtype: torch.dtype) -> tuple[torch.nn.Module, Step]:
    from transformers import GPT2Config, GPT2LMHeadModel

    batch, length = (8, 1024) if GPU else (1, 128)
    config = GPT2Config(use_cache=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model = GPT2LMHeadModel(config).to(DEVICE, dtype).train()
    tokens = torch.randint(0, 50257, (batch, length), device=DEVICE)
    return model, _train(model, {"input_ids": tokens, "labels": tokens})


def bert(dtype: torch.dtype) -> tuple[torch.nn.Module, Step]:
    from transformers import BertConfig, BertModel

    batch, length = (32, 512) if GPU else (2, 128)
    model = BertModel(BertConfig()).to(DEVICE, dtype).eval()
    tokens = torch.randint(0, 30000, (batch, length), device=DEVICE)

    def step(run: Any) -> list[torch.Tensor]:
        with torch.no_grad():
            return [run(input_ids=tokens).last_hidden_state]

    return model, step


def resnet50_training(dtype: torch.dtype) -> tuple[torch.nn.Module, Step]:
    from transformers import ResNetConfig, ResNetForImageClassification

    batch, side = (64, 224) if GPU else (4, 160)
    model = ResNetForImageClassification(ResNetConfig(num_labels=1000)).to(DEVICE, dtype).train()
    pixels = torch.randn(batch, 3, side, side, device=DEVICE, dtype=dtype)
    return model, _train(model, {"pixel_values": pixels, "labels": torch.randint(0, 1000, (batch,), device=DEVICE)})


def vit(dtype: torch.dtype) -> tuple[torch.nn.Module, Step]:
    from transformers import ViTConfig, ViTModel

    batch = 64 if GPU else 2
    model = ViTModel(ViTConfig()).to(DEVICE, dtype).eval()
    pixels = torch.randn(batch, 3, 224, 224, device=DEVICE, dtype=dtype)

    def step(run: Any) -> list[torch.Tensor]:
        with torch.no_grad():
            return [run(pixel_values=pixels).last_hidden_state]

    return model, step


def _train(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> Step:
    def step(run: Any) -> list[torch.Tensor]:
        model.zero_grad(set_to_none=True)
        out = run(**inputs)
        out.loss.backward()
        return [out.loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

    return step


MODELS: dict[str, tuple[Callable[[torch.dtype], tuple[torch.nn.Module, Step]], torch.dtype, torch.dtype]] = {
    # name: (make, dtype on the GPU, dtype on the CPU)
    "gpt2 inference": (gpt2, torch.bfloat16, torch.float32),
    "gpt2 training": (gpt2_training, torch.bfloat16, torch.float32),
    "bert inference": (bert, torch.bfloat16, torch.float32),
    "vit inference": (vit, torch.bfloat16, torch.float32),
    "resnet50 training": (resnet50_training, torch.float32, torch.float32),
}


def measure(name: str, peers: Sequence[str], seconds: float) -> Row:
    """One model, every peer, steps in turn."""
    make, gpu_dtype, cpu_dtype = MODELS[name]
    dtype = gpu_dtype if GPU else cpu_dtype
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, step = make(dtype)
    row = Row(name, str(dtype).removeprefix("torch."))
    runs: dict[str, Any] = {}
    expected = None
    for peer in peers:
        runs[peer] = model if peer == "eager" else torch.compile(model, backend=peer)
        _wait()
        start = time.perf_counter()
        outputs = [t.detach().clone() for t in step(runs[peer])]
        _wait()
        row.first_call_s[peer] = time.perf_counter() - start
        if expected is None:
            expected = outputs
        row.error[peer] = max(_distance(a, b) for a, b in zip(outputs, expected, strict=True))
    times: dict[str, list[float]] = {peer: [] for peer in peers}
    for peer in peers:
        for _ in range(3):
            step(runs[peer])
    deadline = time.perf_counter() + seconds
    while len(times[peers[0]]) < 5 or time.perf_counter() < deadline:
        for peer in peers:
            _wait()
            start = time.perf_counter()
            step(runs[peer])
            _wait()
            times[peer].append((time.perf_counter() - start) * 1e3)
    row.ms = {peer: statistics.median(values) for peer, values in times.items()}
    return row


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm().clamp(min=1e-6))


def _wait() -> None:
    if GPU:
        torch.cuda.synchronize()


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table; write JSON to --out."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models")
    parser.add_argument("--only", nargs="*", default=list(MODELS), help="models, by name")
    parser.add_argument("--peers", nargs="*", default=["eager", "inductor", "litz"])
    parser.add_argument("--seconds", type=float, default=5.0, help="of measuring per model")
    parser.add_argument("--out")
    args = parser.parse_args(argv)
    where = (
        torch.cuda.get_device_name() if GPU else f"{platform.processor() or 'CPU'}, {torch.get_num_threads()} threads"
    )
    print(f"{where}, torch {torch.__version__}")
    print(
        f"{'model':20}" + "".join(f"{peer + ' ms':>13}" for peer in args.peers) + f"{'first calls, s':>20}{'error':>10}"
    )
    rows = []
    for name in args.only:
        row = measure(name, args.peers, args.seconds)
        rows.append(asdict(row))
        first = " ".join(f"{row.first_call_s[peer]:.1f}" for peer in args.peers)
        print(
            f"{name:20}" + "".join(f"{row.ms[peer]:13.2f}" for peer in args.peers)
            + f"{first:>20}{row.error[args.peers[-1]]:10.1e}",
            flush=True,
        )  # fmt: skip
        if args.out:
            with open(args.out, "w") as file:
                json.dump({"device": where, "torch": torch.__version__, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
