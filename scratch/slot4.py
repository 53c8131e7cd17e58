"""Forward and backward kernels of attention with many tiles, compiled in parallel first; and cuDNN's times beside them.

python scratch/slot4.py            (about 100 s; writes $OUT/slot4.json)
"""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

sys.path.insert(0, ".")
OVER = {64: "64x64x4x3 64x128x4x2", 128: "64x64x4x2 64x64x4x3 128x128x8x3", 256: "128x64x8x2 64x32x4x2"}
FWD = {64: "64x64x4x3 64x128x4x2", 128: "64x64x4x3 128x128x8x3", 256: "128x64x8x2"}


def compile_one(name, source, folder):
    from litz.runtime.cache import Cache
    from litz.runtime.triton_build import Variant, build

    start = time.time()
    try:
        build(source, (9, 0), Cache(Path(folder)), Variant(True, False, False))
        return name, "", time.time() - start
    except Exception as why:
        return name, str(why).splitlines()[-1][:120], time.time() - start


def main():
    begun = time.time()
    import torch
    from litz.contractions.attention.backward import write_key_gradients, write_query_gradient
    from litz.contractions.attention.backward_offer import plan_for
    from litz.contractions.attention.backward_tiles import BackwardTile
    from litz.contractions.attention.forward import write_attention
    from litz.contractions.attention.offer import written
    from litz.contractions.attention.overlapped import Overlapped, write_overlapped
    from litz.contractions.attention.plan import make_plan
    from litz.contractions.attention.tiles import Tiles
    from litz.ir import Attention, AttentionBackward
    from litz.runtime.cache import Cache
    from litz.runtime.triton_build import load as load_kernel
    from litz.target import target_of
    from litz_plugins import CodegenContext

    from benchmarks import attention_backward_tiles as backward
    from benchmarks import attention_tiles as forward
    from benchmarks.attention_tiles import Case, alibi, causal, soft_cap, timed, window
    from torch.nn.attention import SDPBackend, sdpa_kernel

    folder = tempfile.mkdtemp()
    pool = ProcessPoolExecutor(15, mp_context=mp.get_context("spawn"))
    size = {64: (4, 32, 4096, 64), 128: (4, 16, 4096, 128), 256: (4, 8, 4096, 256)}
    cases = [Case(f"causal {w}", size[w], mask=causal) for w in (64, 128, 256)]
    cases += [Case(f"full {w}", size[w]) for w in (64, 128, 256)]
    cases += [Case(f"window {w}", size[w], mask=window) for w in (64, 128, 256)]
    cases += [Case(f"softcap {w}", size[w], score_mod=soft_cap, mask=causal) for w in (64, 128, 256)]
    cases += [Case(f"alibi {w}", size[w], score_mod=alibi, mask=causal) for w in (64, 128, 256)]
    target = target_of("cuda:0")
    jobs, futures = [], []

    def numbers(text):
        return [tuple(map(int, each.split("x"))) for each in text.split()]

    def memory_of(program, buffers, args):
        memory = {name: value for name, value in zip(program.inputs, args, strict=True) if isinstance(name, str)}
        for name, buffer in buffers.items():
            if name not in memory:
                shape, stride = (tuple(map(int, e)) for e in (buffer.layout.size, buffer.layout.stride))
                memory[name] = torch.zeros(1, dtype=buffer.dtype, device="cuda").new_empty_strided(shape, stride)
        return memory | {name: value.cuda() for name, value in program.constants.items()}

    def add(case, what, tile, flops, source, memory, program, outs):
        name = f"{case.name} {what} {tile}"
        jobs.append((name, case.name, what, tile, flops, source, memory, program, outs))
        futures.append(pool.submit(compile_one, name, source, folder))

    shares = {}
    for case in cases:
        given = case.tensors(torch.bfloat16)
        function, share = case.function()
        batch, heads, n, width = case.size
        shares[case.name] = share
        unit = 2.0 * batch * heads * n * n * width * share
        try:
            program, args = forward.captured(function, given)
            (attention,) = (op for op in program.operations if isinstance(op, Attention))
            plan = make_plan(attention, program, written(attention, program), False)
            memory = memory_of(program, {k: program.buffers[k] for k in plan.outputs}, args)
            for t in numbers(FWD[width]):
                add(
                    case,
                    "fwd",
                    Tiles(*t),
                    2 * unit,
                    write_attention(plan, Tiles(*t), "attention"),
                    memory,
                    program,
                    plan.outputs,
                )
            for t in numbers(OVER[width]):
                for first in (False, True):
                    Overlapped.copies_first = first
                    source = write_overlapped(plan, Tiles(*t, True), "attention")
                    add(
                        case,
                        "fwd",
                        str(Tiles(*t)) + (" OE" if first else " OL"),
                        2 * unit,
                        source,
                        memory,
                        program,
                        plan.outputs,
                    )
        except Exception as why:
            print(case.name, "forward:", repr(why)[:150])
        torch.cuda.empty_cache()
    print(f"{len(jobs)} kernels; captured after {time.time() - begun:.0f} s", flush=True)
    failed = {}
    for future in as_completed(futures):
        name, why, seconds = future.result()
        if why:
            failed[name] = why
    print(f"compiled after {time.time() - begun:.0f} s; {len(failed)} failed", flush=True)
    rows, first = [], {}
    for name, case, what, tile, flops, source, memory, program, outs in jobs:
        if name in failed:
            rows.append(dict(case=case, what=what, tile=str(tile), failed=failed[name]))
            continue
        try:
            context = CodegenContext(None, target, program, Cache(Path(folder)))
            launch = load_kernel(source, context)
            to = [memory[str(buffer)].data_ptr() for buffer in source.arguments]
            us = timed(lambda: launch(*to), 10)
            got = [memory[o].float() for o in outs if o]
            known = first.setdefault((case, what), [g.clone() for g in got])
            off = max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-9)) for a, b in zip(got, known))
            rows.append(dict(case=case, what=what, tile=str(tile), us=us, tflops=flops / us / 1e6, off=off))
        except Exception as why:
            rows.append(dict(case=case, what=what, tile=str(tile), failed=repr(why)[:120]))
    out = Path(os.environ.get("OUT", "."))
    (out / "slot4.json").write_text(json.dumps(rows, indent=0))
    groups = {}
    for row in rows:
        groups.setdefault((row["case"], row["what"]), []).append(row)
    for (case, what), found in groups.items():
        good = sorted((r for r in found if "us" in r), key=lambda r: r["us"])
        text = ", ".join(
            f"{r['tile']} {r['us']:.0f}us {r['tflops']:.0f}" + (f" OFF {r['off']:.0e}" if r["off"] > 2e-2 else "")
            for r in good[:6]
        )
        bad = sum("failed" in r for r in found)
        print(f"{case} {what}: {text}" + (f"; {bad} failed" if bad else ""))
    print(f"done after {time.time() - begun:.0f} s")


if __name__ == "__main__":
    main()
