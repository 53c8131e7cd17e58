import sys; sys.path.insert(0,"tests")
import importlib
mod=importlib.import_module(sys.argv[1])
for n,c in mod.CASES.items():
    if len(sys.argv)>2 and not any(s in n for s in sys.argv[2:]): continue
    if getattr(c,"unfit",""): continue
    try: r=c.check()
    except Exception as e: r=repr(e)[:300]
    print(n, r or "ok",flush=True)
