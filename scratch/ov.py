import sys; sys.path.insert(0,"scratch")
from look import *
from dataclasses import replace as rep
W=int(sys.argv[1]); q,k,w,st=map(int,sys.argv[2].split(","))
case=A.Case(A.operands(1,16,4096,4096,W,dtype=torch.bfloat16),tiles=Tiles(q,k,w,st))
s=case.kernel().source
t=s.text
i=t.index("    for place in range("); j=t.index("    divisor = ")
f=re.search(r"\* (0\.1\d+)",t).group(1)
new=f'''    key0 = tl.load(keys + keytile0)
    scores = tl.dot(query0, key0)
    kept = tl.zeros([YBLOCK, XBLOCK], tl.bfloat16)
    for place in range(0, end, XBLOCK):
        start = place + zero
        before = tl.maximum(start - XBLOCK, 0)
        value0 = tl.load(values + before * {W} + valuetile0)
        accumulator0 = tl.dot(kept, value0, accumulator0)
        after = tl.minimum(start + XBLOCK, end - XBLOCK)
        key0 = tl.load(keys + after * {W} + keytile0)
        coming = tl.dot(query0, key0)
        greatest = tl.maximum(maximum, tl.max(scores, 1))
        shift = tl.where(greatest == float("-inf"), 0.0, greatest) * {f}
        weights = _exp2_flushed(scores * {f} - shift[:, None])
        smaller = _exp2_flushed(maximum * {f} - shift)
        total = total * smaller + tl.sum(weights, 1)
        accumulator0 = accumulator0 * smaller[:, None]
        kept = weights.to(tl.bfloat16)
        maximum = greatest
        scores = coming
    value0 = tl.load(values + (end - XBLOCK) * {W} + valuetile0)
    accumulator0 = tl.dot(kept, value0, accumulator0)
'''
stats(f"ov{W}_{q}x{k}_{w}w{st}s",rep(s,text=t[:i]+new+t[j:]))
