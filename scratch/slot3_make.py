import sys, json; sys.path.insert(0,"scratch"); sys.path.insert(0,"tests")
from look import A, Tiles, torch, re
import gl_fwd
jobs=[]
for cfg in ["128x128x128x8x3","128x128x128x8x2","64x64x128x4x2","128x64x128x8x3","128x64x256x8x2","64x64x64x4x3","64x128x64x4x2"]:
    Y,X,D,W,S=map(int,cfg.split("x"))
    for place in ("early","late","end"):
        for causal in (True,False):
            if not causal and cfg not in ("128x128x128x8x3","64x64x128x4x2","128x64x256x8x2"): continue
            jobs.append(dict(name=f"gluon {place} {cfg}",causal=causal,D=D,Y=Y,warps=W,stages=S,gluon=True,symbol="kernel",text=gl_fwd.text(Y,X,D,4096,W,S,causal,place)))
for D,ts in {64:["64x64x4x3","64x128x4x2","128x128x8x2"],128:["128x128x8x3","128x128x8x2","64x64x4x3","64x64x4x2","128x64x8x3"],256:["128x64x8x2","128x32x8x3"]}.items():
    for t in ts:
        q,k,w,s=map(int,t.split("x"))
        for causal in (True,False):
            case=A.Case(A.operands(1,2,4096,4096,D,dtype=torch.bfloat16),tiles=Tiles(q,k,w,s),mask=A.causal if causal else None,listed=not causal)
            src=case.kernel().source
            assert "(outer % 2)" in src.text
            from dataclasses import replace
            src=replace(src,text=src.text.replace("(outer % 2)","outer"))
            base=dict(causal=causal,D=D,Y=q,warps=w,stages=s,gluon=False,symbol=src.symbol)
            jobs.append(dict(base,name=f"triton {t}",text=src.text))
            tx=src.text
            rows=4*2048//D*4096
            tx=tx.replace("    zero = h0 * 0\n",f"    zero = h0 * 0\n    kd = tl.make_tensor_descriptor(p1, [{rows}, {D}], [{D}, 1], [XBLOCK, D0BLOCK])\n    vd = tl.make_tensor_descriptor(p2, [{rows}, {D}], [{D}, 1], [XBLOCK, E0BLOCK])\n    top = h0 * 4096\n")
            n1=tx.count("tl.load(keys + start * "); 
            tx=tx.replace(f"tl.load(keys + start * {D} + keytile0)","kd.load([top + start, 0]).T").replace(f"tl.load(values + start * {D} + valuetile0)","vd.load([top + start, 0])")
            assert n1 and "tl.load(keys" not in tx and "tl.load(values" not in tx
            jobs.append(dict(base,name=f"tma {t}",text=tx))
json.dump(jobs,open("scratch/slot3.json","w")); print(len(jobs))
