import sys; sys.path.insert(0,"scratch")
from look import *
from dataclasses import replace as rep
case=A.Case(A.operands(1,16,4096,4096,128,dtype=torch.bfloat16),tiles=Tiles(128,128,8,3))
s=case.kernel().source
t=s.text
t=t.replace("    zero = h0 * 0\n","    zero = h0 * 0\n    kd = tl.make_tensor_descriptor(p1, [65536, 128], [128, 1], [XBLOCK, D0BLOCK])\n    vd = tl.make_tensor_descriptor(p2, [65536, 128], [128, 1], [XBLOCK, E0BLOCK])\n    top = h0 * 4096\n")
t=t.replace("tl.load(keys + start * 128 + keytile0)","kd.load([top + start, 0]).T").replace("tl.load(values + start * 128 + valuetile0)","vd.load([top + start, 0])")
def go(name,t,w,st):
    try: stats(name,rep(s,text=t,settings={**s.settings,"num_warps":w,"num_stages":st}))
    except Exception as e: print(name,"ERR",str(e)[:1500])
go("tma",t,8,3)
t2=t.replace("for place in range(","for place in tl.range(").replace("XBLOCK):\n        start","XBLOCK, warp_specialize=True):\n        start")
go("tmaws8",t2,8,2); go("tmaws4",t2,4,2)
