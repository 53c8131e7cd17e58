"""A program through AOTAutograd and litz, without dynamo; run by the IR's interpreter or as compiled kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import sympy
import torch
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from litz.capture import torch_api
from litz.capture.aot import compile_with_aot
from litz.capture.earlier import EarlierStages
from litz.capture.graph import Graph
from litz.capture.layout import changed_strides
from litz.codegen.wrapper import generate_wrapper
from litz.cost import Roofline
from litz.driver.builtin import Core, EstimatedChoice
from litz.driver.stages import earlier_stages, lower_graph, prepare_graph, schedule_program
from litz.ir.interpret import interpret
from litz.ir.verify import verify
from litz.pipeline import Compiler, build, decompositions, generate, make_compiler, plan_schedule
from litz.report.log import Log
from litz.schedule import unscheduled
from litz.target import describe_cpu
from litz.targets.cpp.codegen import CppCodegen
from litz_plugins import Pass, TargetSpec, hookimpl
from litz_plugins.loading import installed_entry_points
from litz_plugins.manager import make_plugins
from litz_testing.tensors import overlaps
from litz_testing.torch_compile import torch_compiled

from .cpp_batch import CppBatch
from .owning import nested
from .program import FuzzProgram, is_trained
from .tiles import Tiles
from .torch_alone import through_aot

Way = Literal["interpreted", "compiled", "traced"]

Peer = Literal["captured", "plain", "decomposed", "laid out", "promised", "living", "rebuilt"]


@dataclass
class Executable:
    """A compiled program. way: how the next call runs. shape_env: holds the guards of a dynamic one."""

    call: Callable[..., Any]
    way: list[Way]
    shape_env: ShapeEnv | None
    placeholders: Sequence[Any]
    symbols: Sequence[tuple[int, int]]
    """Where the sizes stand that come before the tensors, as dynamo passes them: (input, dimension)."""
    graphs: list[str] = field(default_factory=list)
    broken: list[Exception] = field(default_factory=list)
    """The errors that litz's own stages raised where dynamo called them."""

    def run(self, inputs: Sequence[torch.Tensor], way: Way) -> list[Any]:
        """Returns the outputs. Writes to the inputs as the program does."""
        self.way[0] = way
        sizes = [_numbers(inputs[number])[at] for number, at in self.symbols]
        return list(self.call(*sizes, *inputs))

    def accepts(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Returns whether the guards hold for these inputs: dynamo would compile anew where they do not. Fixed sizes
        have none, and dynamo looks at its own."""
        if self.shape_env is None:
            return True
        from torch._dynamo.source import LocalSource

        sources = [LocalSource(f"t{number}") for number in range(len(self.placeholders))]
        guards = self.shape_env.produce_guards(self.placeholders, sources, ignore_static=False)
        # torch's own `evaluate_guards_for_args` joins them without parentheses: one that is an "or" undoes the others.
        code = " and ".join(f"({guard})" for guard in guards)
        try:
            return not code or bool(self.shape_env.evaluate_guards_expression(code, list(inputs)))
        except ZeroDivisionError:  # 5 % (s % 5) != 0 where s is 5: for dynamo a guard that raises does not hold
            return False


PLUGINS = ("operators", "passes")
"""Plugins of litz's own that take part in each program, beside core."""


class FuzzCompiler:
    """litz with the C++ of many programs built at once. compiled: also builds and runs the kernels, not only the
    interpreter. level: the C++ compiler's -O. plugins: with those of `PLUGINS` that are installed. numerics: the option
    `numerics.mode`, for which litz-numerics has to be installed; with "strict" what kernels compute is to be eager's
    bit for bit."""

    def __init__(
        self,
        compiled: bool = True,
        level: int = 1,
        device: str = "cpu",
        plugins: bool = True,
        numerics: str = "default",
    ) -> None:
        self.batch = CppBatch(level)
        self.compiled, self.device, self.strict = compiled, device, numerics == "strict"
        options = {"debug": True, "cache_dir": self.batch.folder.name, "memory_pool": False}
        named = PLUGINS if plugins else ()
        if numerics != "default":
            named, options = (*named, "numerics"), {**options, "numerics.mode": numerics}
        if device == "cpu":
            found = installed_entry_points()
            own = [
                ("core", Core()),
                ("estimate", EstimatedChoice()),
                ("cpp", _Cpp(self.batch)),
                ("roofline", Roofline()),
                *(("covers", _Covers(point.load())) for point in found if plugins and point.name == "contractions"),
            ]
            points = [point for point in found if point.name in named]
            self.compiler = make_compiler(None, options, make_plugins(own, entry_points=points))
        else:
            torch.backends.cudnn.allow_tf32 = False  # the judges know the roundings of float32
            self.compiler = make_compiler(None, options)
        self.tiles = Tiles(self.batch.folder.name) if device == "cpu" else None
        self.pooled = replace(self.compiler, options=replace(self.compiler.options, memory_pool=True))
        self.decompositions = decompositions(self.compiler)

    def compile(self, program: FuzzProgram, inputs: Sequence[torch.Tensor], peer: Peer | None = None) -> Executable:
        """Returns the program, compiled for inputs like these. Its kernels are there after `finish`.

        peer: without litz's stages: what AOTAutograd makes of it runs in eager, with litz's decompositions or none.
        With none ("plain"), no code of litz's runs where dynamo captures the program. "laid out": each tensor then gets
        the strides that it has in the traced graph; "promised": the same, without decompositions. "captured": without
        AOTAutograd too, what dynamo makes of a program `by_dynamo`. "living": without decompositions, and without what
        no result depends on. "rebuilt": without decompositions, and results know no tensor that they are views of, as
        those of kernels: AOTAutograd then rebuilds views of inputs by sizes, strides and offset.
        """
        way: list[Way] = ["interpreted"]
        graphs: list[str] = []
        rules = {} if peer in ("plain", "promised", "living", "rebuilt") else self.decompositions
        earlier = None if peer else partial(earlier_stages, self.compiler)

        def compile_graph(graph: Graph) -> Callable[[list[Any]], Any]:
            graphs.append(str(graph))
            if peer is not None:
                run = _eager(_living(graph) if peer == "living" else graph, peer in ("laid out", "promised"))
                return _without_bases(run) if peer == "rebuilt" else run
            # Without the pool, what was freed is filled with huge numbers for those who read it.
            compiler = self.pooled if program.together else self.compiler
            return _switch(graph, compiler, way, self.compiled, program.nests, self.tiles)

        if program.by_dynamo and peer == "plain":
            call = through_aot(program, graphs)
            _call_once(program, call, inputs)
            return Executable(call, way, None, (), (), graphs)
        if program.by_dynamo:
            made = None if peer == "captured" else compile_graph
            return _captured(program, inputs, made, rules, way, graphs, earlier)
        shape_env = ShapeEnv(duck_shape=True) if program.dynamic else None
        mode = FakeTensorMode(shape_env=shape_env or ShapeEnv())  # dynamo always has one
        with tracing(TracingContext(mode)):
            fake = [_fake(mode, value, number, program.dynamic) for number, value in enumerate(inputs)]
            symbols = _symbols(fake)
            module: Any = _Module(program, len(symbols))
            arguments = [*(_numbers(fake[number])[at] for number, at in symbols), *fake]
            with torch.set_grad_enabled(program.grad), default_device(self.device):
                call = compile_with_aot(
                    module, arguments, compile_graph=compile_graph, decompositions=rules, earlier=earlier
                )
        return Executable(call, way, shape_env, fake, symbols, graphs)

    def finish(self) -> None:
        """Builds the kernels of all programs since the last time."""
        self.batch.build()

    def forget(self) -> None:
        """Makes dynamo forget its code. No program that it captured can be run any more."""
        torch._dynamo.reset()


def _captured(
    program: FuzzProgram,
    inputs: Sequence[torch.Tensor],
    compile_graph: Callable[[Graph], Any] | None,
    rules: Mapping[Any, Any],
    way: list[Way],
    graphs: list[str],
    earlier: Callable[[str], EarlierStages] | None,
) -> Executable:
    """Captures a program with dynamo, whose graph has all that it can capture of what depends on data, and calls it
    once, which compiles it. compile_graph: None to run dynamo's graph as it is."""
    broken: list[Exception] = []

    def compile_noted(graph: Graph) -> Any:
        assert compile_graph is not None
        try:
            return compile_graph(graph)
        except Exception as error:
            if not torch_api.is_restart(error):
                broken.append(error)
            raise

    def backend(module: Any, examples: Sequence[Any]) -> Callable[..., Any]:
        if compile_graph is None:
            return module.forward  # type: ignore[no-any-return]
        return compile_with_aot(module, examples, compile_graph=compile_noted, decompositions=rules, earlier=earlier)

    call = torch_compiled(program.function(), backend, program.dynamic)
    _call_once(program, call, inputs)
    return Executable(call, way, None, (), (), graphs, broken)


def _call_once(program: FuzzProgram, call: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> None:
    """Makes dynamo compile, with gradients on or off as in the runs that are judged: dynamo guards on that."""
    with contextlib.suppress(Exception), torch.set_grad_enabled(program.grad):
        call(*inputs)


def _switch(
    graph: Graph, compiler: Compiler, way: list[Way], compiled: bool, nests: bool, tiles: Tiles | None = None
) -> Callable[[list[Any]], Any]:
    log = Log()
    prepared = prepare_graph(graph, compiler, log)
    lowered = lower_graph(prepared, compiler, log)
    if nests:
        verify(lowered := nested(lowered))
    elif tiles is not None:
        tiles.check(prepared, lowered)
    schedule = schedule_program(prepared, lowered, compiler, log)
    run = unscheduled(schedule)
    program = lowered if nests else run
    interpreted = _without_bases(partial(interpret, program))
    entry = None
    if compiled:
        plan = plan_schedule(schedule, compiler)
        sources = generate(plan, compiler)
        entry = build(plan, sources, generate_wrapper(plan, sources), compiler)

    def call(arguments: list[Any]) -> Any:
        if way[0] == "interpreted":
            values = list(arguments)
            arguments.clear()
            return interpreted(values)
        assert entry is not None
        return entry(arguments)

    call.output_strides = changed_strides(graph, prepared)  # type: ignore[attr-defined]
    return call


def _living(graph: Graph) -> Graph:
    """The graph, changed in place, without what its results do not depend on: of an operand that an op like `full_like`
    takes, its size alone counts, and so it is with a result without elements."""
    nodes = graph.module.graph

    def size_alone(value: Any) -> torch.fx.Node | None:
        """A tensor of the size and strides of `value` alone, made where nodes are being inserted; None of symbols."""
        if not isinstance(value, torch.Tensor) or not all(isinstance(n, int) for n in (*value.shape, *value.stride())):
            return None
        made = torch.ops.aten.empty_strided.default, (list(value.shape), list(value.stride()))
        return nodes.call_function(*made, {"dtype": value.dtype, "device": value.device})

    for node in list(nodes.nodes):
        overload = node.target
        if not isinstance(overload, torch._ops.OpOverload) or overload._schema.is_mutable:
            continue
        with nodes.inserting_before(node):
            if overload._opname.endswith("_like") and isinstance(node.args[0], torch.fx.Node):
                if (like := size_alone(node.args[0].meta.get("val"))) is not None:
                    node.update_arg(0, like)
            elif isinstance(value := node.meta.get("val"), torch.Tensor) and 0 in value.shape:
                if (empty := size_alone(value)) is not None:
                    node.replace_all_uses_with(empty)
    nodes.eliminate_dead_code()
    return graph


def _eager(graph: Graph, laid_out: bool = False) -> Callable[[list[Any]], Any]:
    def call(arguments: list[Any]) -> Any:
        values = list(arguments)
        arguments.clear()
        interpreter = _LaidOut(graph, values) if laid_out else torch.fx.Interpreter(graph.module)
        outputs = interpreter.run(*values, enable_io_processing=False)
        return interpreter.outputs(outputs) if isinstance(interpreter, _LaidOut) else outputs

    return call


def _without_bases(run: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Results that know no tensor that they are views of, as those of kernels: autograd takes such a view of another
    result for one that has its gradient. A view that is read as conjugate or negative stays one."""

    def call(arguments: list[Any]) -> Any:
        return [
            value.new_empty(0).set_(value.untyped_storage(), value.storage_offset(), value.shape, value.stride())
            if isinstance(value, torch.Tensor) and value._base is not None and not (value.is_conj() or value.is_neg())
            else value
            for value in run(arguments)
        ]

    return call


class _LaidOut(torch.fx.Interpreter):
    """Runs a graph with the strides that its metadata promises, where no two elements share a place: of new tensors, so
    that views of them look into memory that lies so, and of the outputs."""

    def __init__(self, graph: Graph, inputs: Sequence[Any]) -> None:
        super().__init__(graph.module)
        self.items, self.symbols = graph.outputs, dict[Any, Any]()
        placeholders = [node.meta.get("val") for node in graph.nodes if node.op == "placeholder"]
        for meta, value in zip(placeholders, inputs, strict=True):
            self.learn(meta, value)

    def learn(self, meta: Any, value: Any) -> None:
        """Notes what the symbols of a value are that are new: an input's, or of a size that data decide."""
        if isinstance(meta, torch.Tensor) and isinstance(value, torch.Tensor):
            pairs = zip((*meta.shape, *meta.stride()), (*value.shape, *value.stride()), strict=True)
        else:
            pairs = zip((meta,), (value,))
        for size, number in pairs:
            if isinstance(size, torch.SymInt) and (symbol := torch_api.sympy_of(size)).is_Symbol:
                # A result of torch's may lie otherwise than its metadata says.
                self.symbols.setdefault(symbol, sympy.Integer(number))

    def run_node(self, node: torch.fx.Node) -> Any:
        value = super().run_node(node)
        self.learn(node.meta.get("val"), value)
        fresh = node.op == "call_function" and torch_api.aliased_argument(node) is None
        return self.laid(node, value) if fresh and not torch_api.written_arguments(node) else value

    def outputs(self, values: Sequence[Any]) -> list[Any]:
        pairs = zip(self.items, values, strict=True)
        return [self.laid(item, value) if isinstance(item, torch.fx.Node) else value for item, value in pairs]

    def laid(self, node: torch.fx.Node, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not isinstance(node.meta.get("val"), torch.Tensor):
            return value
        steps = [torch_api.sympy_of(step).xreplace(self.symbols) for step in node.meta["val"].stride()]
        if not all(step.is_number for step in steps) or list(value.stride()) == steps:
            return value
        wanted = torch.empty_strided(value.shape, [int(step) for step in steps], dtype=value.dtype, device=value.device)
        return value if overlaps(wanted) else wanted.copy_(value)


def _fake(mode: FakeTensorMode, value: torch.Tensor, number: int, dynamic: bool) -> Any:
    from torch._dynamo.source import LocalSource

    if not dynamic:
        return mode.from_tensor(value, static_shapes=True)
    context: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DUCK] * value.dim())
    return mode.from_tensor(value, symbolic_context=context, source=LocalSource(f"x{number}"))


def _symbols(fake: Sequence[Any]) -> list[tuple[int, int]]:
    """Returns the input, and the position among its `_numbers`, where each symbol is first seen. Each is an argument of
    its own, as from dynamo."""
    found: dict[Any, tuple[int, int]] = {}
    for number, value in enumerate(fake):
        for position, size in enumerate(_numbers(value)):
            if isinstance(size, torch.SymInt):
                found.setdefault(size.node.expr, (number, position))
    return list(found.values())


def _numbers(value: torch.Tensor) -> tuple[Any, ...]:
    """Returns what a graph cannot read off a tensor's data: its sizes, and where in its storage it begins."""
    return (*value.shape, value.storage_offset())


class _Module(torch.nn.Module):
    """The program where AOTAutograd wants dynamo's module. skip: arguments that are sizes."""

    def __init__(self, program: FuzzProgram, skip: int) -> None:
        super().__init__()
        self.function, self.skip = program.function(), skip

    def forward(self, *args: Any) -> Any:
        return self.function(*args[self.skip :])


class _Cpp:
    """Stands for the CPU with kernels that are built later."""

    def __init__(self, batch: CppBatch) -> None:
        self.batch = batch

    @hookimpl
    def litz_register_targets(self, options: Any) -> list[TargetSpec]:
        return [TargetSpec("cpu", describe_cpu, CppCodegen(loader=self.batch.load))]


class _Covers:
    """Puts library calls in the place of loops, as litz-contractions does, whose kernels programs do without.
    contractions: its plugin."""

    def __init__(self, contractions: Any) -> None:
        self.contractions = contractions

    @hookimpl
    def litz_register_passes(self, options: Any) -> list[Pass]:
        passes = self.contractions.litz_register_passes(options)
        own = ("remove_dead_operations",)  # behind which the plugin's pass before this one stands
        return [replace(each, after=own) for each in passes if each.name == "contract_broadcast_products"]


def default_device(name: str) -> AbstractContextManager[Any]:
    """Returns a context in which tensors are made on a device; it does nothing for the CPU, as torch's mode slows every
    call down."""
    return nullcontext() if name == "cpu" else torch.device(name)


def trained(program: FuzzProgram, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the inputs, with gradients asked for where a `grad` program wants them."""
    if program.grad:
        for spec, value in zip(program.inputs, inputs, strict=True):
            if is_trained(spec):
                value.requires_grad_()
    return inputs
