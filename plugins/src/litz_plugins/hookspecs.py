"""Every hook of litz. A plugin is a module (or object) with functions of these names, marked ``@hookimpl``.

Rules for all of them:

- Functions are called by parameter name, and may leave out parameters that they do not need. litz may add parameters in
  a later version and never renames one. A parameter with a default value is an error: pluggy would not fill it in.
- Arguments are read only. Return data; change nothing in place: what is changed is found, put back, and a failure.
- Plugins are asked in the order of their names, core's built-in plugins last. ``@hookimpl(tryfirst=True)`` and
  ``trylast=True`` move a plugin to the front or the back, ``before=("numerics?",)`` and ``after`` move it to a side of
  the plugins named, as they do passes; wrappers are not supported, since each result has one author.
- A hook that raises, does not end (option ``plugin_seconds``) or returns what it must not stops the compile with an
  error that names plugin and hook. With ``on_plugin_error="disable"`` that plugin is left out for the rest of the
  process, the compile begins anew without it, and one warning says so.
- Never touch the process outside litz: no global settings of torch, no environment, no threads left running.

How often: `litz_plugins.calls` says what a compile, a graph and a look-up are, and has the counts as a table, which
tests hold the compiler to. What a plugin registers is asked for at most once a compile, before anything is traced, so
that of plugins that clash one is left out before it has had a part in anything; and not at all where the graph cache
has everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pluggy

from litz_plugins.nouns import Graph, JointGraph, Noun, Operation, OpOverload, OptionsView, Program, Report
from litz_plugins.records import (
    Choice,
    ChoiceContext,
    Entry,
    EntryFacts,
    Estimate,
    Exporter,
    KernelSource,
    LayoutNeed,
    LayoutPlan,
    OptionSpec,
    Pass,
    PassContext,
    Saver,
    Target,
    TargetOf,
    TargetSpec,
    TemplateSpec,
    Uncacheable,
    Watcher,
)

PROJECT = "litz"

_F = TypeVar("_F", bound=Callable[..., Any])

_spec = pluggy.HookspecMarker(PROJECT)


def hookspec(function: _F) -> _F:
    """Marks a function as a hook's specification, and returns it with its type."""
    return _spec(function)


def hookspec_first(function: _F) -> _F:
    """Marks a function as a hook's specification, whose first result that is not None is the answer."""
    return _spec(firstresult=True)(function)


# ---------------------------------------------------------------------------------------------------- what there is


@hookspec
def litz_register_options() -> Sequence[OptionSpec] | None:
    """The plugin's options. Since 0.1.

    Called: once a compile, before any other hook; and by commands that show or check options.
    Combined: concatenated; each name gets the plugin's name in front ("autotune" + "seconds" = "autotune.seconds"), so
    that two plugins cannot clash. A name given twice by one plugin is an error.

    Returns: option specs. None or empty: the plugin has no options.
    """


@hookspec
def litz_register_decompositions() -> Mapping[OpOverload, Callable[..., Any] | None] | None:
    """Ops to be rewritten into simpler ops while the graph is traced, and where a graph pass puts them in. Since 0.1.

    Called: at most once a compile, before it is traced.
    Combined: merged by op overload. A plugin's decomposition replaces core's; two plugins for one op is an error that
    names both.

    Returns: overload -> a function of the op's own signature, written with torch ops on (fake) tensors, which must give
    the same result, dtype, shape and stride. None for an overload: the op stays whole. None or empty: nothing to add.
    """


@hookspec
def litz_register_lowerings() -> Mapping[OpOverload, Callable[..., Any]] | None:
    """Registers how ops become IR. Since 0.1.

    Called: at most once a compile, before it is traced.
    Combined: merged by op. A plugin's lowering replaces core's; two plugins for one op is an error that names both.

    Returns: overload, or higher-order op, -> a function as `litz.lower` documents it: it is handed the lowering context
    and the op's arguments (tensors as IR values) and returns the IR of the result. None or empty: nothing to add. Ops
    that nobody lowers become `Extern` calls.
    """


@hookspec
def litz_register_passes(options: OptionsView) -> Sequence[Pass] | None:
    """Passes over the graphs of capture, the Program or the Schedule. Since 0.1.

    Called: at most once a compile, before it is traced; also by `litz plugins`, which lists them.
    Combined: concatenated, then sorted by ``after`` and ``before`` of each stage; what these leave open is decided by
    core first, then plugins by name. A cycle, or one name used twice, is an error that names the passes and plugins.

    options: this compile's options; return no pass where an option switches the plugin off.
    Returns: passes. None or empty: no passes in this compile.
    """


@hookspec
def litz_register_templates(options: OptionsView) -> Sequence[TemplateSpec] | None:
    """Kernel templates for contractions (matmul, convolution, attention). Since 0.1.

    Called: at most once a compile, before it is traced, also where there are no contractions.
    Combined: concatenated; every template is a candidate beside the library call. One name used twice is an error.

    options: this compile's options.
    Returns: templates. None or empty: none in this compile.
    """


@hookspec
def litz_register_layout_needs() -> Mapping[OpOverload, LayoutNeed | Mapping[str, LayoutNeed]] | None:
    """Registers how calls take tensors: "any" strides, those of the trace ("traced"), or "contiguous". Since 0.1.

    Called: at most once a compile, before it is traced.
    Combined: merged by op overload. A plugin's row replaces core's; two plugins for one op is an error that names both.

    Returns: overload -> what all its tensor arguments need, or the name of an argument -> what that one needs ("any"
    for those not named). An op without a row takes any strides if litz lowers it, else those of the trace, so that a
    layout plan cannot break an op that nobody thought of. "contiguous" holds without any plan too. None or empty: no
    rows.
    """


@hookspec
def litz_register_targets(options: OptionsView) -> Sequence[TargetSpec] | None:
    """Types of devices: how to describe one as a `Target`, and what generates its code. Since 0.1.

    Called: at most once a compile, before it is traced: for the graph cache's key, or with all that plugins register.
    Combined: merged by type of device. A plugin's target replaces core's for that type; two plugins for one type is an
    error that names both.

    options: this compile's options.
    Returns: targets. None or empty: nothing to add.
    """


@hookspec
def litz_register_commands() -> Mapping[str, Any] | None:
    """Commands of `litz` on the command line. Since 0.1.

    Called: at most once a command line: when `litz` is given a command that is not core's, or asked for help. Import
    what a command needs inside of it: this hook should be quick.
    Combined: merged by name. A command of core's cannot be replaced; two plugins for one name is an error.

    Returns: the name as it is typed ("estimate-collective") -> a `click.Command`. None or empty: no commands.
    `litz_plugins.scripts` runs a user's script for a command that watches what the script compiles.
    `litz_plugins.command_line.ScriptCommand` is the class of such a command.
    """


@hookspec
def litz_narrow(kind: str, registered: Mapping[Any, Any], options: OptionsView) -> Mapping[Any, Any] | None:
    """Says which of what core and all plugins register a compile uses. Since 0.1.

    Called: any number of times a compile: for each kind, before the trace, and again where torch defines more ops.
    Combined: one around the other. The first plugin is handed all that is registered, the next what that returned.

    kind: "decomposition" or "lowering" (by op), "pass" or "template" (by name). registered: what is registered, by op
    or by name. options: this compile's options.
    Returns: a mapping of some of the same keys. What is left out is as if nobody had registered it: an op without a
    decomposition stays whole, and one without a lowering is the library's call. The value of an op may be another
    function, which is this plugin's own and may call the one that was registered. None: all stay as they are.
    """


# -------------------------------------------------------------------------------------------- what it costs, what to do


@hookspec_first
def litz_estimate_runtime(
    operation: Operation, target: Target, program: Program, options: OptionsView | None
) -> Estimate | None:
    """Estimates how long an operation runs on a device. Since 0.1.

    Called: at least once a step of each finished schedule; also for each contraction and what may replace it, and once
    for each structure of loop that might be fused, split or inlined (a structure is all of a loop but names).
    Be quick (microseconds, no synchronizing, no kernels started), and depend on nothing but the arguments and what was
    read when the plugin was loaded. For a collective, depend only on what every rank shares, since every rank must
    decide alike.
    Combined: the first result that is not None. Core answers last, for every operation it knows. What a plugin says of
    a loop decides what is fused, split and inlined; the decision names the plugin. Say of a fused loop as much as of
    its parts: the two are compared.

    operation: a Loop, Extern, Template, Collective or Wait of the IR; a fused kernel is asked about as its Loop.
    target: where it runs. program: what the operation is part of; it has the buffers that the operation names, and
    ``program.hint(size)`` gives a likely value of a size that is symbolic. ``litz.cost.count_work(operation, program,
    target)`` counts the FLOPs and bytes, and ``litz.cost.estimate`` is core's own answer, to start from. options: the
    compile's options; None where nothing is compiled (a notebook that asks what something would cost).
    Returns: microseconds as an `Estimate` (with an interval and a reason). None: not known here, ask the next.
    """


@hookspec_first
def litz_select_choice(choices: Sequence[Choice], context: ChoiceContext) -> Choice | None:
    """Selects which candidate runs a contraction. Since 0.1.

    Called: once a contraction of a kind that a template is registered for, even where no template offers anything; the
    place where autotuning measures.
    Combined: the first result that is not None. Core answers last, with the lowest estimate that is surely faster than
    the library call.

    choices: the candidates; the library call ("extern") is always the first. context: operation, program, target,
    options, cache, and `record` for the reason.
    Returns: one of ``choices`` (that very object). None: no opinion, ask the next.
    """


@hookspec_first
def litz_select_layout(
    graph: Graph, options: OptionsView, needs: Any, target_of: TargetOf, lowered: frozenset[Any]
) -> LayoutPlan | None:
    """Memory layouts for a graph's tensors, such as channels last for convolutions. Since 0.1.

    Called: once a graph, after the graph passes and before lowering.
    Combined: the first result that is not None.

    graph: the captured graph. options: this compile's options. needs: called as ``needs(node, argument)`` with two FX
    nodes, says how ``node`` takes ``argument`` (a `LayoutNeed`), by the table of `litz_register_layout_needs`.
    target_of: called with a torch.device, gives its `Target`. lowered: the ops that core and plugins have lowerings of.
    Returns: a plan; nodes that it does not name keep their layout. None: no opinion; all layouts stay
    if nobody has one.
    """


@hookspec_first
def litz_partition(
    joint: JointGraph,
    options: OptionsView,
    planned: Callable[[tuple[Any, Any]], tuple[Any, Any]],
    context: PassContext,
) -> tuple[Any, Any] | None:
    """Decides what a training step's forward saves for its backward, and what the backward computes again. Since 0.1.

    Called: at most once a compile, after the passes of stage "joint" and before those of stage "partitioned"; not for
    inference, nor for what AOTAutograd's cache has.
    Combined: the first result that is not None. Core answers last, with torch's min-cut partitioner.

    joint: the `JointGraph`, a copy: a partitioner of torch's may change ``joint.module``. Return None before you change
    it. options: this compile's options. planned: called with a forward and a backward as they would be returned, gives
    the `ExecutionPlan` of each, after all passes and fusion; takes as long as compiling both without building kernels.
    context: the `PassContext` of the decision: what it puts on record and attaches is in the forward's report.
    Returns: two GraphModules, the forward and the backward, by the convention of torch's partitioners: the forward
    returns its ``joint.forward_outputs`` results and then what it saves; the backward takes what is saved, under the
    names that it has in the forward, and the gradients. ``functorch.compile.default_partition(joint.module,
    joint.inputs, num_fwd_outputs=joint.forward_outputs, **joint.more)`` saves everything. None: no opinion, ask the
    next.
    """


@hookspec_first
def litz_tune(tuning: Any) -> Any:
    """Selects which of the ways to compile a graph runs: decisions measured instead of estimated. Since 0.1.

    Called: once a graph, when its first schedule is made.
    Combined: the first result that is not None.

    tuning: a `litz.driver.variants.Tuning`. ``tuning.first`` is the variant that the estimates make,
    ``tuning.first.weighed`` its decisions with what each way of them is expected to take, ``tuning.make(ways)`` a
    variant with some of them taken otherwise. What two variants do not share, to be built and run, is
    `litz_autotune.difference`'s to say, from ``variant.schedule`` of both.
    Nothing may be measured where ``tuning.why_not`` says why. ``tuning.later(job)`` has a job run once the graph was
    called: the one way for a plugin to work in the background.
    Returns: a variant that ``tuning`` made. None: no opinion, ask the next; ``tuning.first`` if nobody has one.
    """


@hookspec
def litz_cache_fingerprint(options: OptionsView) -> str | Uncacheable | None:
    """Says what else the results of a plugin depend on: a part of the keys of the graph cache. Since 0.1.

    Called: once a look-up into the graph cache: one before the trace where that may be saved, and one for each graph.
    Not where the cache is off. Combined: by plugin; a key has all of them.

    Always in a key without this hook: the versions of the plugin's dist and of torch, the plugin's source files, the
    values of all options, and the devices' targets. Answer for what is beyond: the content of a file that an option
    names, a table in the environment, the state of an object. The text is compared, never read. A plugin that has this
    hook goes by no names of graphs and nodes, and not by the lines or modules that nodes come from, or answers for them
    too: without it they are part of the key, and equal layers of a model are not found to be equal.

    options: this compile's options.
    Returns: a text; `Uncacheable` with a reason where graphs must not be kept. None or empty: nothing beyond (a plugin
    that is an object and was passed in by the caller has to say so, as nobody else knows what it holds).
    """


@hookspec_first
def litz_find_graph(kind: str, key: str, options: OptionsView) -> bytes | None:
    """Finds a part of a compiled graph that this disk does not have: on a server, on another machine. Since 0.1.

    Called: any number of times a graph: for the graph itself, and for each kernel that is built, where the disk cache
    has none. Not where the cache is off. In a thread of its own, several at a time.
    Combined: the first result that is not None. What is damaged, or no entry at all, is as None. Core's disk cache is
    asked before, since libraries are loaded from its folder; what is found is put there.

    A plugin that raises, takes longer than 90 s (or the option plugin_seconds, if that is less) or returns anything
    but bytes costs the compile nothing else: one warning says so, and its two hooks are not called again in the
    process.

    kind: "graph" for the graph itself; else of a kernel's binary ("cpp", "triton") or of litz's own library ("native").
    key: 40 hexadecimal digits; equal keys mean equal content, whoever made it. options: this compile's options.
    Returns: the bytes that `litz_keep_graph` was given for this kind and key, on whatever machine. The bytes hold code
    that will run: return only what comes from those whom the user trusts. None: not kept here, ask the next. The
    compile makes the part then, and calls `litz_keep_graph`.
    """


@hookspec
def litz_keep_graph(kind: str, key: str, content: bytes | None, options: OptionsView) -> None:
    """Keeps a part of a compiled graph that was made here, for `litz_find_graph`. Since 0.1.

    Called: any number of times a graph: for each part that `litz_find_graph` had nowhere, when it is made.
    Combined: every plugin is told; what it returns is ignored. A failure is as one of `litz_find_graph`.

    kind, key: as in `litz_find_graph`. content: at most 256 MiB, with sums of its own; the bytes are for litz alone to
    read. None where making the content failed, so that nobody goes on waiting for the content. options: this compile's
    options.
    Returns: None.
    """


# ---------------------------------------------------------------------------------------------------------- what runs


@hookspec
def litz_wrap_entry(entry: Entry, facts: EntryFacts, options: OptionsView) -> Entry | None:
    """Says what runs in place of a compiled graph's entry: a recording that is replayed, a measurement. Since 0.1.

    Called: at least once a graph, those from the graph cache included: each time that code is made ready to run, and so
    again for what a search in the background finds. Import little: a graph from the cache is ready in milliseconds.
    Combined: one around the other. The first plugin is handed the graph's own entry, the next what that returned.

    entry: runs the graph; called with the list of the inputs (tensors, and numbers where sizes are symbolic).
    facts: which inputs stay where they are, which outputs may be lent, on which devices it runs, and why it cannot be
    recorded if it cannot. options: this compile's options.
    Returns: a callable that does what ``entry`` does: it empties the list that it is given, and returns the outputs as
    a tuple, with the same sizes, strides and values, in memory that the graph does not touch again while somebody holds
    it. Any thread may call it. litz calls it as it is, in each call of the graph, so nobody is between it and the user:
    what the callable raises is raised. The callable must not hold what has to end before the process does, unless
    ``litz.capture.torch_api.reset_with_dynamo`` knows what ends it. None: the entry stays.
    """


@hookspec_first
def litz_select_exporter(target: TargetSpec, source: KernelSource | None, options: OptionsView) -> Exporter | None:
    """Says what puts kernels into a package, and launches them there. Since 0.1.

    Called: at least once a package that `litz_aot.compile` writes: for the package itself, and once for each kernel.
    Combined: the first result that is not None. litz-aot answers last, for kernels that core's code generators write
    for CPUs and CUDA.

    target: of the device; ``target.plugin`` has it. source: a kernel, in ``source.language``; None for the package,
    whose exporter says what the package is made for and whether this machine is that. options: this compile's options.
    Returns: an `Exporter`. None: no opinion, ask the next. What nobody exports is an error, and no package is written.
    """


@hookspec_first
def litz_select_saver(options: OptionsView) -> Saver | None:
    """Says what compiles where torch saves the result: `aot_compile` of a compiled function, precompiling. Since 0.1.

    Called: at most once a compile: for what dynamo captured, before anything is compiled, where torch will save it.
    Combined: the first result that is not None. litz-aot answers last.

    options: this compile's options.
    Returns: a callable of what dynamo captured (a torch.fx.GraphModule), its example inputs and the compiler, which is
    litz's own. The callable returns what runs the graph with dynamo's convention, one of torch's
    `SerializableCallable`; None for a graph that it does not save. litz calls it outside the hook, since it compiles:
    what it raises is raised. None: no opinion, ask the next. Where nobody saves, litz compiles as ever, and torch says
    that it cannot save the result.
    """


# ------------------------------------------------------------------------------------------------------------ observers


@hookspec
def litz_watch_graph(name: str, options: OptionsView, read: bool, slow: Callable[[], str]) -> Watcher | None:
    """Says what to tell a plugin while a graph is compiled: stages, kernels that are built, passes. Since 0.1.

    Called: at least once a graph: before the graph is looked for in the cache, and once more for each capture; not for
    a graph that is found without a trace.
    Combined: every plugin is told what its `Watcher` has functions for.

    name: of the graph; '' for a capture, in which graphs are made, and "traced" and "joint" passes run. options: this
    compile's options. read: whether anybody reads the report: what takes long to find out need not be found out where
    nobody does. slow: called from any thread, says which plugin's call has been running for more than a second, '' for
    none.
    Returns: a `Watcher`. None: nothing to be told.
    """


@hookspec
def litz_compile_started(graph: Graph, options: OptionsView) -> None:
    """A graph was captured and is about to be compiled (not called when it comes from the cache). Since 0.1.

    Called: once a graph that is compiled. Combined: every plugin is told; what it returns is ignored.

    graph: the captured graph. options: this compile's options.
    """


@hookspec
def litz_pass_finished(pass_: Pass, before: Noun, after: Noun, seconds: float) -> None:
    """A pass has run. Since 0.1.

    Called: once a pass that ran, on each noun: again for each case of the option `sizes`, and for each variant that
    max-autotune makes of a graph. Combined: every plugin is told; what it returns is ignored.

    pass_: the pass, with its stage and plugin. before, after: its argument and its result (the same object if nothing
    changed). seconds: wall time of the pass, in seconds.
    """


@hookspec_first
def litz_compile_failed(graph: Graph, failure: Exception, options: OptionsView) -> str | None:
    """Says how the user sees a failed compile fail again. Since 0.1.

    Called: at most once a graph: where litz or a plugin fails, and not where a user's mistake is told.
    Combined: the first result that is not None. A plugin that fails here costs the message its command, and no more.

    graph: the captured graph. failure: the `LitzError` that will be raised, or told in a warning. options: this
    compile's options.
    Returns: a command for a shell, which the message will have. None: no way is known.
    """


@hookspec
def litz_compile_finished(report: Report, options: OptionsView) -> None:
    """A graph is compiled, or was fetched from the cache. Since 0.1.

    Called: once a graph, those from the graph cache included; `litz audit --out` calls again, with a report that has
    what a run measured (``report.realised``).
    Combined: every plugin is told; what it returns is ignored.

    report: the compile's report: kernels, decisions, costs, times. Files that belong to the report go into
    ``report.folder``, which is None where the user asked for no files (option report_dir). options: this compile's
    options.
    """
