"""Compile a small model with litz, train it a few steps, and look at what was made of it.

    python examples/quickstart.py

Runs on the CPU (with a C++ compiler) and, where there is one, on the GPU.
"""

import torch
from torch import nn

from litz import report

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 10)).to(device)
inputs, labels = torch.randn(128, 64, device=device), torch.randint(0, 10, (128,), device=device)

# This is all there is to it. The first call compiles; the kernels stay in a cache on disk for the next process.
compiled = torch.compile(model, backend="litz")

# The result is eager's up to rounding.
torch.testing.assert_close(compiled(inputs), model(inputs), rtol=1e-3, atol=1e-3)

# Training works as ever: the backward pass is a graph of its own, compiled like the forward. `collect` keeps a report
# of every graph that is compiled meanwhile.
torch._dynamo.reset()  # forget the first compile, so that there is something to report
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with report.collect() as reports:
    for step in range(5):
        loss = nn.functional.cross_entropy(compiled(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.4f}")

for one in reports:
    calls = ", ".join(f"{count} x {name}" for name, count in one.externs.items())
    print(f"{one.name}: {one.loops_before} loops fused, kernels: {one.kernels_after}, library calls: {calls}")
    print(f"    source: {one.wrapper_path}")
# `litz explain examples/quickstart.py` prints much more: each kernel, what it costs, what was fused and why not.
