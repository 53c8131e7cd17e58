"""Try the Gluon forward kernel of scratch/gl_fwd.py: right? how fast?   python scratch/gl_run.py   (about 40 s)"""
import json, multiprocessing as mp, os, sys, time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

sys.path.insert(0, "."); sys.path.insert(0, "scratch")
CONFIGS = {
    64: ["128x128x64x8x2", "128x128x64x8x3", "128x64x64x8x3", "64x128x64x4x2", "64x128x64x4x3", "64x64x64x4x3", "128x64x64x8x2"],
    128: ["128x128x128x8x3", "128x128x128x8x2", "128x64x128x8x3", "128x64x128x8x2", "64x64x128x4x2", "64x128x128x4x2"],
    256: ["128x64x256x8x2", "128x32x256x8x3", "64x32x256x4x2"],
}


def work(config, n, is_causal, late):
    from gl_fwd import compile_text, text
    Y, X, D, W, S = map(int, config.split("x"))
    why = ""
    for barrier in ("tl.debug_barrier()", "gl.thread_barrier()", "gl.barrier()"):
        try:
            c = compile_text(text(Y, X, D, n, W, S, is_causal, late, barrier), W)
            from litz.runtime.triton_build import _count_parameters
            m = c.metadata
            return config, is_causal, late, dict(cubin=c.asm["cubin"], name=m.name, shared=m.shared, warps=m.num_warps, parameters=_count_parameters(c.asm["ptx"]), spills=c.asm["ptx"].count(".local")), ""
        except Exception as e:
            why = why or repr(e)[-300:]
    return config, is_causal, late, None, why


def main():
    begun = time.time()
    import torch
    from litz.runtime import cuda_driver
    from benchmarks.attention_tiles import timed
    n = 4096
    pool = ProcessPoolExecutor(15, mp_context=mp.get_context("spawn"))
    futures = []
    for D, configs in CONFIGS.items():
        for c in configs:
            for is_causal in (True, False):
                for late in (True, False):
                    if late or is_causal and configs.index(c) < 2:
                        futures.append(pool.submit(work, c, n, is_causal, late))
    given = {}
    for D in CONFIGS:
        q, k, v = (torch.randn(4, 2048 // D, n, D, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        exact = {c: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=c) for c in (True, False)}
        given[D] = q, k, v, exact
    for f in as_completed(futures):
        config, is_causal, late, found, why = f.result()
        D, Y = int(config.split("x")[2]), int(config.split("x")[0])
        label = f"gluon {'causal' if is_causal else 'full'} {config}{'' if late else ' early'}"
        if found is None:
            print(label, "FAILED", why.replace("\n", " ")[-180:], flush=True)
            continue
        q, k, v, exact = given[D]
        out = torch.zeros_like(q)
        try:
            fn = cuda_driver.load_function(found["cubin"], found["name"], 0, found["warps"] * 32, found["shared"], 4, found["parameters"])
            launch = cuda_driver.make_launch(fn, None)
            grid = (n // Y) * q.shape[0] * q.shape[1]
            to = [x.data_ptr() for x in (q, k, v, out)]
            us = timed(lambda: launch(grid, *to), 10)
            error = float((out.float() - exact[is_causal].float()).abs().max())
            share = (n // 128 + 1) / (2 * n // 128) if is_causal else 1.0
            print(f"{label}: {us:.0f} us {4.0 * 4 * 2048 * n * n * share / us / 1e6:.0f} TFLOP/s error {error:.1e}", flush=True)
        except Exception as e:
            print(label, "FAILED", repr(e)[:150], flush=True)
    print(f"done after {time.time() - begun:.0f} s")


if __name__ == "__main__":
    main()
