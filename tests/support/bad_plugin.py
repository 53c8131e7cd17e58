"""A plugin that does harm on purpose: its pass decides about each `exp` of a graph, and adds to the one named `exp_2` a
lot of work, or a wrong number. What `litz bisect` has to find."""

MODULE = """
    import torch
    from dataclasses import replace
    from litz.capture import torch_api
    from litz_plugins import OptionSpec, Pass, hookimpl

    aten = torch.ops.aten

    @hookimpl
    def litz_register_options():
        return [OptionSpec("harm", str, "", "what to do to exp_2", choices=("", "slow", "wrong", "crash"))]

    @hookimpl
    def litz_register_passes(options):
        return [Pass("harm", "graph", harm, after=("eliminate_dead_code",))] if options["bad.harm"] else []

    def harm(graph, context):
        harm = context.options["bad.harm"]
        copied = torch.fx.Graph()
        mapping = {}
        for node in graph.nodes:
            new = mapping[node] = copied.node_copy(node, mapping.__getitem__)
            if node.target is not aten.exp.default or not context.allows(node.name):
                continue
            context.record(node.name, "changed", "to do harm", about=node.name)
            value = node.meta["val"]
            if node.name != "exp_2":
                continue
            if harm == "crash":
                raise RuntimeError("crashed on purpose")
            if harm == "wrong":
                mapping[node] = added(copied, aten.mul.Tensor, (new, 1.25), value)
                continue
            for _ in range(12):
                order = added(copied, aten.sort.default, (new,), (value, value.to(torch.int64)))
                part = added(copied, getitem, (order, 0), value)
                zero = added(copied, aten.mul.Tensor, (part, 0.0), value)
                new = added(copied, aten.add.Tensor, (new, zero), value)
            mapping[node] = new
        module = torch_api.make_graph_module(graph.module, copied, "harmed")
        return replace(graph, module=module)

    from operator import getitem

    def added(graph, target, args, value):
        node = graph.call_function(target, args)
        node.meta["val"] = value
        return node
"""

SCRIPT = """
import sys
import torch

@torch.compile(backend="litz", options={"bad.harm": sys.argv[1]} if len(sys.argv) > 1 else {})
def f(x):
    return (x.exp() + 1).sum(0), x.sin().exp().sum(1), x.cos().exp() * 2, (x * 2).exp()

x = torch.rand(64, 512)
for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 30):
    f(x)
"""
