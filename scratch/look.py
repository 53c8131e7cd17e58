"""python scratch/look.py fwd|dq|dkdv VARIANT WIDTH TILES... ; prints registers, spills, ops of loops; writes text to /tmp/look."""
import sys, subprocess, re, collections, pathlib, json
sys.path.insert(0, "tests")
import torch
from dataclasses import replace
from support import attention_cases as A, attention_backward_cases as Bk
from litz.contractions.attention.tiles import Tiles
from litz.runtime.triton_build import compile_kernel, make_target
SM=make_target((9,0))
ND="/work/main/.venv/lib/python3.11/site-packages/triton/backends/nvidia/bin/nvdisasm"
out=pathlib.Path("/tmp/look"); out.mkdir(exist_ok=True)
def window(b,h,q,k): return (q >= k) & (q - k < 512)
SL=torch.exp2(-8*torch.arange(1,17)/16)
def alibi(s,b,h,q,k): return s+SL[h]*(k-q)
def cap(s,b,h,q,k): return 20.0*torch.tanh(s/20.0)
V={"full":{}, "causal":dict(mask=A.causal),"window":dict(mask=window),"alibi":dict(mask=A.causal,score_mod=alibi),"softcap":dict(mask=A.causal,score_mod=cap)}
def stats(name, source):
    c=compile_kernel(source,SM)
    (out/f"{name}.py").write_text(source.text)
    (out/f"{name}.ttgir").write_text(c.asm["ttgir"]); (out/f"{name}.ptx").write_text(c.asm["ptx"])
    (out/f"{name}.cubin").write_bytes(c.asm["cubin"])
    sass=subprocess.run([ND,"-c",str(out/f"{name}.cubin")],capture_output=True,text=True).stdout
    (out/f"{name}.sass").write_text(sass)
    res=subprocess.run(["/work/main/.venv/lib/python3.11/site-packages/triton/backends/nvidia/bin/cuobjdump","-res-usage",str(out/f"{name}.cubin")],capture_output=True,text=True).stdout
    reg=re.findall(r"REG:(\d+)",res); st=re.findall(r"STACK:(\d+)",res)
    n_sp=len(re.findall(r"\b(STL|LDL)",sass))
    print(name,"reg",reg,"stack",st,"LDL/STL",n_sp,"shared",c.metadata.shared, "warps",c.metadata.num_warps)
    # loops by backwards branches
    ins=re.findall(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?);",sass,re.M)
    labels={}
    lines=sass.splitlines(); addr=None; pending=[]; seq=[]
    for l in lines:
        m=re.match(r"^(\.L_x_\d+):",l.strip())
        if m: pending.append(m.group(1)); continue
        m=re.match(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?);",l)
        if m:
            a=int(m.group(1),16)
            for p in pending: labels[p]=len(seq)
            pending=[]; seq.append(m.group(2))
    for i,t in enumerate(seq):
        m=re.search(r"BRA.*?`\((\.L_x_\d+)\)",t)
        if m and labels.get(m.group(1),10**9)<i and i-labels[m.group(1)]>40:
            body=seq[labels[m.group(1)]:i+1]
            cnt=collections.Counter(re.sub(r"^@!?U?P\w+ ","",x).split()[0].split(".")[0] for x in body)
            print("  loop",labels[m.group(1)],i,"n",len(body),dict(cnt.most_common(26)))
if __name__=="__main__":
    kind,variant,width,*tiles=sys.argv[1:]
    width=int(width); size=4096
    for t in tiles:
        q,k,w,s=map(int,t.split(","))
        name=f"{kind}_{variant}_{width}_{q}x{k}_{w}w{s}s"
        if kind=="fwd":
            case=A.Case(A.operands(1,16,size,size,width,dtype=torch.bfloat16),block=128,tiles=Tiles(q,k,w,s),**V[variant])
            stats(name,case.kernel().source)
        else:
            from litz.contractions.attention.backward_tiles import BackwardTile
            from litz.contractions.attention.backward import write_query_gradient, write_key_gradients
            from litz.contractions.attention.backward_offer import plan_for
            if t==tiles[0]:
                v=dict(V[variant]); v={"score" if a=="score_mod" else a:b for a,b in v.items()}
                sz=(1,2,2048,width)
                program=replace(Bk.BASE,query=sz,key=sz,dtype=torch.bfloat16,blocks=128,**v).program()
                plan=plan_for(Bk.attention_of(program),program,False)
            write=write_query_gradient if kind=="dq" else write_key_gradients
            stats(name,write(plan,BackwardTile(q,k,w,s),kind))
