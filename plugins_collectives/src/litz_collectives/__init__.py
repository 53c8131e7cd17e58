"""litz-collectives: what communication costs, and when it runs.

    topology.py   the machine and its links, as data (JSON)
    tables.py     NCCL's own figures
    nccl.py       which algorithm and protocol NCCL takes, and its formula
    fit.py        curves through measured times
    evaluate.py   how far the curves are off
    contention.py what overlap costs each side
    profile.py    a topology with its measured curves (JSON)
    model.py      a message on a topology -> microseconds, with an interval and a reason
    traffic.py    a Collective of the IR -> a message
    reorder.py    passes that move communication and computation
    verify.py     do all ranks plan the same?
    plugin.py     the hooks; cli.py the commands

Measuring, `litz calibrate-collectives`:

    measure.py    device time of one call
    overlap.py    a collective and a kernel at a time
    together.py   what every rank says, known to every rank
    calibrate.py  the plan, and the profile that comes of it
    job.py        what torchrun started; calibrate_cli.py the command

Auditing, `litz audit`:

    realised.py   a profiler's trace -> what each collective took
    audit.py      a run under the profiler; audit_cli.py the command

The model itself is plain Python: neither torch nor a GPU is needed to plan a cluster from a laptop.
"""
