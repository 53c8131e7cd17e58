"""litz-collectives: what communication costs.

    topology.py   the machine and its links, as data (JSON)
    tables.py     NCCL's own figures
    nccl.py       which algorithm and protocol NCCL takes, and its formula
    fit.py        curves through measured times
    profile.py    a topology with its measured curves (JSON)
    model.py      a message on a topology -> microseconds, with an interval and a reason
    traffic.py    a Collective of the IR -> a message
    plugin.py     the hooks; cli.py the commands

All but `traffic` is plain Python: neither torch nor a GPU is needed to plan a cluster from a laptop.
"""
