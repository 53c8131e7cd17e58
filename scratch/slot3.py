"""Forward kernels of attention whose texts are in scratch/slot3.json: right? how fast?   python scratch/slot3.py   (30 s)"""
import json, multiprocessing as mp, sys, tempfile, time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, ".")


def source_of(job):
    from litz_plugins import KernelSource
    batch = 4 * (2048 // job["D"])
    settings = dict(pointers=["*bf16"] * 4, sizes=0, unaligned=[], num_warps=job["warps"], num_stages=job["stages"],
                    grid=(4096 // job["Y"]) * batch, limits=[], limit=2**31 - 1, asserts=False, host_scalars=[])
    if job["gluon"]:
        settings["gluon"] = True
    return KernelSource("k", "triton", job["text"], job["symbol"], ("q", "k", "v", "o"), settings, suffix="py")


def work(job, folder):
    from litz.runtime.cache import Cache
    from litz.runtime.triton_build import Variant, build
    try:
        build(source_of(job), (9, 0), Cache(Path(folder)), Variant(True, False, False))
        return ""
    except Exception as why:
        return str(why).splitlines()[-1][:120]


def main():
    import torch
    from benchmarks.attention_tiles import timed
    from litz.runtime.cache import Cache
    from litz.runtime.triton_build import load
    from litz.target import target_of
    from litz_plugins import CodegenContext
    begun, folder = time.time(), tempfile.mkdtemp()
    jobs = json.loads(Path("scratch/slot3.json").read_text())
    with ProcessPoolExecutor(15, mp_context=mp.get_context("spawn")) as pool:
        failed = list(pool.map(work, jobs, [folder] * len(jobs)))
    print(f"{len(jobs)} kernels compiled after {time.time() - begun:.0f} s")
    given, found = {}, {}
    for D in (64, 128, 256):
        q, k, v = (torch.randn(4, 2048 // D, 4096, D, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        given[D] = q, k, v, {c: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=c) for c in (True, False)}
    context = CodegenContext(None, target_of("cuda:0"), type("P", (), {"hint": lambda self, x: int(x)})(), Cache(Path(folder)))
    for job, why in zip(jobs, failed):
        key = (job["name"], job["D"])
        if why:
            found.setdefault(key, []).append("failed " + why[:60])
            continue
        q, k, v, exact = given[job["D"]]
        out = torch.zeros_like(q)
        try:
            launch = load(source_of(job), context)
            to = [x.data_ptr() for x in (q, k, v, out)]
            us = min(timed(lambda: launch(*to), 10) for _ in range(2))
            error = float((out.float() - exact[job["causal"]].float()).abs().max())
            share = 33 / 64 if job["causal"] else 1.0
            tflops = 4.0 * 4 * 2048 * 4096 * 4096 * share / us / 1e6
            found.setdefault(key, []).append(f"{'causal' if job['causal'] else 'full'} {us:.0f} us {tflops:.0f}" + ("" if error < 2e-2 else f" WRONG {error:.1e}"))
        except Exception as e:
            found.setdefault(key, []).append("failed " + repr(e)[:60])
    for (name, D), texts in sorted(found.items(), key=lambda item: item[0][1]):
        print(f"d{D} {name}: {'; '.join(texts)}")
    print(f"done after {time.time() - begun:.0f} s")


if __name__ == "__main__":
    main()
