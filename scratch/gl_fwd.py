"""A Gluon forward kernel (causal or full, static): wgmma of this tile's scores runs under the softmax of the one before."""
COPIES = '''        # every warp is done with key t and value t - 1
        nk = gl.maximum(count - 1 - (t + STAGES), 0)
        nv = gl.maximum(count - 1 - (t + STAGES - 1), 0)
        async_copy.async_copy_global_to_shared(ks.index(t % STAGES), koff + nk * (XBLOCK * D))
        async_copy.async_copy_global_to_shared(vs.index((t + STAGES - 1) % STAGES), voff + nv * (XBLOCK * D))
        async_copy.commit_group()
'''
TEXT = '''
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait, fence_async_shared
from triton.experimental.gluon.language.nvidia.ampere import async_copy


@gluon.jit
def power(a):
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [a], gl.float32, True, 1)


@gluon.jit
def held(a):
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=f,f", [a], gl.float32, False, 1)


@gluon.jit
def never(a):
    return gl.inline_asm_elementwise("trap; mov.b32 $0, $1;", "=f,f", [a], gl.float32, False, 1)


@gluon.jit
def kernel(p0, p1, p2, p3):
    YBLOCK: gl.constexpr = {Y}
    XBLOCK: gl.constexpr = {X}
    D: gl.constexpr = {D}
    N: gl.constexpr = {N}
    WARPS: gl.constexpr = {W}
    STAGES: gl.constexpr = {S}
    FACTOR: gl.constexpr = {F}
    CAUSAL: gl.constexpr = {C}
    smma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, XBLOCK, 16])
    omma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, D, 16])
    lhs: gl.constexpr = gl.DotOperandLayout(0, omma, 2)
    shared: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // D, D // 8], [WARPS, 1], [1, 0])
    tiles: gl.constexpr = (N + YBLOCK - 1) // YBLOCK
    row = tiles - 1 - gl.program_id(0) % tiles
    outer = gl.program_id(0) // tiles
    base = outer * (N * D)
    dw = gl.arange(0, D, layout=gl.SliceLayout(0, wide))[None, :]
    yw = gl.arange(0, YBLOCK, layout=gl.SliceLayout(1, wide))[:, None]
    xw = gl.arange(0, XBLOCK, layout=gl.SliceLayout(1, wide))[:, None]
    q = gl.load(p0 + base + (row * YBLOCK + yw) * D + dw)
    qs = gl.allocate_shared_memory(gl.bfloat16, [YBLOCK, D], shared, q)
    ks = gl.allocate_shared_memory(gl.bfloat16, [STAGES, XBLOCK, D], shared)
    vs = gl.allocate_shared_memory(gl.bfloat16, [STAGES, XBLOCK, D], shared)
    koff = p1 + base + xw * D + dw
    voff = p2 + base + xw * D + dw
    if CAUSAL:
        count = ((row + 1) * YBLOCK + XBLOCK - 1) // XBLOCK
    else:
        count = (N // XBLOCK) * gl.num_programs(1)
    # tile t of the walk is number count - 1 - t: the masked ones first
    async_copy.async_copy_global_to_shared(ks.index(0), koff + (count - 1) * (XBLOCK * D))
    async_copy.commit_group()
    for s in gl.static_range(0, STAGES - 1):
        # group s: key s + 1, value s
        nextk = gl.maximum(count - 2 - s, 0)
        nextv = gl.maximum(count - 1 - s, 0)
        async_copy.async_copy_global_to_shared(ks.index(s + 1), koff + nextk * (XBLOCK * D))
        async_copy.async_copy_global_to_shared(vs.index(s), voff + nextv * (XBLOCK * D))
        async_copy.commit_group()
    yi = row * YBLOCK + gl.arange(0, YBLOCK, layout=gl.SliceLayout(1, smma))[:, None]
    xi = gl.arange(0, XBLOCK, layout=gl.SliceLayout(0, smma))[None, :]
    zero = gl.zeros([YBLOCK, XBLOCK], gl.float32, smma)
    acc = gl.zeros([YBLOCK, D], gl.float32, omma)
    async_copy.wait_group(STAGES - 1)
    fence_async_shared()
    s = warpgroup_mma(qs, ks.index(0).permute((1, 0)), zero, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(0, deps=[s])
    if CAUSAL:
        s = gl.where((count - 1) * XBLOCK + xi <= yi, s, float("-inf"))
    top = gl.max(s, 1)
    shift = gl.where(top == float("-inf"), 0.0, top) * FACTOR
    p = power(s * FACTOR - shift[:, None])
    total = gl.sum(p, 1)
    pb = gl.convert_layout(p.to(gl.bfloat16), lhs)
    last = count * gl.num_programs(1)
    for t in range(0, count - 1):
        async_copy.wait_group(STAGES - 2)
        tl.debug_barrier()
        fence_async_shared()
{EARLY}        s = warpgroup_mma(qs, ks.index((t + 1) % STAGES).permute((1, 0)), zero, use_acc=False, is_async=True)
        acc = warpgroup_mma(pb, vs.index(t % STAGES), acc, is_async=True)
{LATE}        s = warpgroup_mma_wait(1, deps=[s])
        if CAUSAL and XBLOCK < YBLOCK:
            if t < YBLOCK // XBLOCK - 1:
                s = gl.where((count - 2 - t) * XBLOCK + xi <= yi, s, float("-inf"))
        new = gl.maximum(top, gl.max(s, 1))
        shift = gl.where(new == float("-inf"), 0.0, new) * FACTOR
        p = power(s * FACTOR - shift[:, None])
        smaller = power(top * FACTOR - shift)
        total = held(total * smaller + gl.sum(p, 1))
        top = new
        after = gl.convert_layout(p.to(gl.bfloat16), lhs)
{END}        if t == last:
            # Never: ptxas would wait before the powers, but not move a wait across a jump.
            total = never(total)
        # The weights are among the operands of the wait, so that they are computed before it.
        acc, pb, after = warpgroup_mma_wait(0, deps=[acc, pb, after])
        pb = after
        acc = acc * gl.convert_layout(smaller, gl.SliceLayout(1, omma))[:, None]
    async_copy.wait_group(0)
    tl.debug_barrier()
    fence_async_shared()
    acc = warpgroup_mma(pb, vs.index((count - 1) % STAGES), acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=[acc])
    divisor = gl.where(total == 0.0, 1.0, total)
    out = acc / gl.convert_layout(divisor, gl.SliceLayout(1, omma))[:, None]
    out = gl.convert_layout(out.to(gl.bfloat16), wide)
    gl.store(p3 + base + (row * YBLOCK + yw) * D + dw, out)
'''


def text(Y, X, D, N, W, S, C, late="late", barrier="tl.debug_barrier()"):
    import math
    t = TEXT.replace("tl.debug_barrier()", barrier)
    for where in ("early", "late", "end"):
        t = t.replace("{" + where.upper() + "}", COPIES if late == where else "")
    for k, v in dict(Y=Y, X=X, D=D, N=N, W=W, S=S, C=C, F=repr(1 / math.sqrt(D) / math.log(2))).items():
        t = t.replace("{" + k + "}", str(v))
    return t


def compile_text(source_text, warps, folder=None):
    import triton
    from litz.runtime.triton_build import load_module, make_target
    from triton.experimental.gluon._runtime import GluonASTSource
    kernel = load_module(source_text, folder).kernel
    types = ["*bf16"] * 4
    source = GluonASTSource(kernel, dict(zip(kernel.arg_names, types)), {}, {(n,): [["tt.divisibility", 16]] for n in range(4)})
    return triton.compile(source, target=make_target((9, 0)), options={"num_warps": warps})


if __name__ == "__main__":
    import sys, subprocess, re, collections
    sys.path.insert(0, "scratch")
    Y, X, D, W, S = map(int, sys.argv[1].split("x"))
    c = compile_text(text(Y, X, D, 4096, W, S, True), W)
    open("/tmp/look/gl.cubin", "wb").write(c.asm["cubin"]); open("/tmp/look/gl.ptx", "w").write(c.asm["ptx"]); open("/tmp/look/gl.ttgir", "w").write(c.asm["ttgir"])
    B = "/work/main/.venv/lib/python3.11/site-packages/triton/backends/nvidia/bin/"
    sass = subprocess.run([B + "nvdisasm", "-c", "/tmp/look/gl.cubin"], capture_output=True, text=True).stdout
    open("/tmp/look/gl.sass", "w").write(sass)
    res = subprocess.run([B + "cuobjdump", "-res-usage", "/tmp/look/gl.cubin"], capture_output=True, text=True).stdout
    print(re.findall(r"REG:\d+|STACK:\d+", res), "shared", c.metadata.shared, "LDL/STL", len(re.findall(r"\b(STL|LDL)", sass)))
    labels, seq, pend = {}, [], []
    for l in sass.splitlines():
        m = re.match(r"^(\.L_x_\d+):", l.strip())
        if m: pend.append(m.group(1)); continue
        m = re.match(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", l)
        if m:
            for p in pend: labels[p] = len(seq)
            pend = []; seq.append(m.group(2))
    for i, t in enumerate(seq):
        m = re.search(r"BRA.*?`\((\.L_x_\d+)\)", t)
        if m and labels.get(m.group(1), 10**9) < i and i - labels[m.group(1)] > 40:
            body = seq[labels[m.group(1)]:i + 1]
            ops = [re.sub(r"^@!?U?P\w+ ", "", x).split()[0] for x in body]
            cnt = collections.Counter(o.split(".")[0] for o in ops)
            print("loop", len(body), dict(cnt.most_common(28)))
            last, run = None, 0
            line = []
            for o, x in zip(ops, body):
                k = o if o.startswith(("HGMMA", "WARPGROUP", "WARPSYNC", "BAR", "LDGSTS", "MUFU", "LDGDEPBAR", "DEPBAR", "FENCE", "FMNMX", "R2UR", "SHFL")) else None
                if k is None: continue
                k = k.split(".")[0] + ("." + k.split(".")[1] if "WARPGROUP" in k else "")
                if k == last: run += 1
                else:
                    if last: line.append(f"{last}*{run}")
                    last, run = k, 1
            line.append(f"{last}*{run}")
            print("  ", " ".join(line))
