"""Whether a change of the compiler's code changes what it makes: the texts of many graphs, written by two commits.

python -m benchmarks.same_texts write /tmp/old --programs 200 --jobs 2     the texts of every stage, a folder a graph
python -m benchmarks.same_texts compare /tmp/old /tmp/new                  which differ, and where; exit status 1 then

litz and its plugins are those of PYTHONPATH, so that this file can write the texts of another commit. The tool needs no
GPU and builds no C++. It compiles programs of the fuzzer, small models (inference and a training step) and contractions
in the sizes that people use, each for the CPU and for two GPUs. A graph's folder has the program, the schedule, the
plan, each kernel's source with its settings, the wrapper and the decisions, without paths, times and addresses.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import importlib.metadata
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

LITZ: Mapping[str, tuple[str, ...]] = {
    "make_compiler": ("litz.compiler", "litz.driver.compiler"),
    "builtin_plugins": ("litz.builtin", "litz.driver.builtin"),
    "make_plugins": ("litz_plugins.manager",),
    "Log": ("litz.report.log",),
    "capture": ("litz.stages", "litz.driver.stages", "litz.pipeline"),
    "prepare_graph": ("litz.stages", "litz.driver.stages", "litz.pipeline"),
    "lower_graph": ("litz.stages", "litz.driver.stages", "litz.pipeline"),
    "schedule_program": ("litz.driver.stages", "litz.pipeline"),
    "schedule_lowered": ("litz.stages",),
    "plan_schedule": ("litz.stages", "litz.driver.stages", "litz.pipeline"),
    "generate": ("litz.building", "litz.driver.code", "litz.pipeline"),
    "generate_wrapper": ("litz.codegen.wrapper",),
    "target_named": ("litz.target", "litz.targets"),
    "cpu_target": ("litz.target", "litz.targets"),
    "stay_wide": (
        "litz.capture.torch_api.narrow",
        "litz.capture.joint.saved_positions",
        "litz_passes.joint.saved_positions",
    ),
    "objects_in": ("litz.ir.printer",),
    "parse_program": ("litz_testing.parse",),
    "parse_schedule": ("litz_testing.parse",),
    "plan_kernel": ("litz.codegen.kernel_plan",),
    "parse_kernel_plan": ("litz_testing.parse",),
}
"""All that is used of litz's core: each name, with the modules that have it in one commit or another."""

GPUS: Mapping[str, str] = {"h100": "NVIDIA H100 80GB HBM3", "h200": "NVIDIA H200"}
"""The GPUs by the names of their folders. A GPU's name is its driver's."""
CPU = ("cpu",)
CPU_THREADS = 16
SEED = "same_texts"
MODELS = ("bert", "gpt2", "llama", "t5", "resnet", "unet", "graph", "dlrm", "diffusion")
WRITTEN_OUT = ("bert", "gpt2", "llama")
"""Models of `support.eager_models`, whose attention is written out and long enough to be one kernel."""
NOT_READ = "not_read.txt"
"""The file with the texts that are not read back as what was printed."""
SHOWN = 12
"""How many differing lines of a file are shown."""


def of_litz(name: str) -> Any:
    """Returns what a name of `LITZ` stands for. ImportError if no module of the table has it."""
    for module in LITZ[name]:
        with contextlib.suppress(ModuleNotFoundError):
            found = importlib.import_module(module)
            if hasattr(found, name):
                return getattr(found, name)
    raise ImportError(f"no {name} in {' or '.join(LITZ[name])}: add its module to LITZ in {__file__}")


# ----------------------------------------------------------------------------------------------------- what is compiled

Run = Callable[[Callable[..., Any]], Any]
"""Compiles something with a backend, and calls it."""


@dataclass(frozen=True)
class Item:
    """Something to compile: a folder's name. `fuzz/7` is a program of the fuzzer."""

    name: str

    @property
    def has_own_cuda(self) -> bool:
        """Returns whether its run compiles a graph for a GPU beside the one for the CPU."""
        return self.name.startswith("contraction/")

    def run(self, texts: dict[str, str]) -> tuple[Run, bool]:
        """Returns what compiles the item, and whether its graphs have to be computed to go on. Adds the item's own
        text."""
        kind, _, name = self.name.partition("/")
        makers = {"fuzz": _fuzzed, "model": _model, "written_out": _written_out, "flex": _flex, "planes": _planes}
        return makers.get(kind, _contraction)(name, texts)


def items(programs: int) -> list[Item]:
    """Returns all items, those that take long first."""
    models = [f"model/{name}{kind}" for name in MODELS for kind in (".train", ".eval")]
    models += [f"written_out/{name}{kind}" for name in WRITTEN_OUT for kind in (".train", ".eval")]
    contractions = [*(f"contraction/{name}" for name in CONTRACTIONS), *(f"flex/{name}" for name in FLEX)]
    contractions += [f"planes/{name}{kind}" for name in PLANES for kind in ("", ".dynamic")]
    return [Item(name) for name in [*models, *contractions, *(f"fuzz/{number:03}" for number in range(programs))]]


def _fuzzed(name: str, texts: dict[str, str]) -> tuple[Run, bool]:
    import torch

    from litz_testing.fuzz.execute import trained
    from litz_testing.fuzz.generate import generate
    from litz_testing.fuzz.gradients import gradients
    from litz_testing.fuzz.inputs import make_inputs
    from litz_testing.torch_compile import torch_compiled

    program, _ = generate(f"{SEED}:{int(name)}")
    texts["program.py"] = program.script()

    def run(backend: Callable[..., Any]) -> None:
        inputs = trained(program, make_inputs(program.inputs))
        with torch.set_grad_enabled(program.grad):
            outputs = torch_compiled(program.function(), backend, program.dynamic)(*inputs)
            if program.grad:
                gradients(outputs, inputs)

    return run, True


def _model(name: str, texts: dict[str, str]) -> tuple[Run, bool]:
    import torch

    from support.zoo import ZOO

    name, kind = name.split(".")
    (entry,) = (entry for entry in ZOO if str(entry) == name)

    def run(backend: Callable[..., Any]) -> None:
        model = entry.make().train(kind == "train")
        with torch._dynamo.config.patch(**entry.patches):
            _call(torch.compile(model, backend=backend, dynamic=False), entry.inputs(2), kind)

    return run, False


def _written_out(name: str, texts: dict[str, str]) -> tuple[Run, bool]:
    import torch

    from support.eager_models import eager_model

    name, kind = name.split(".")

    def run(backend: Callable[..., Any]) -> None:
        model, inputs = eager_model(name)
        _call(torch.compile(model.bfloat16().train(kind == "train"), backend=backend, dynamic=False), inputs, kind)

    return run, False


def _call(model: Callable[..., Any], inputs: Mapping[str, Any], kind: str) -> None:
    import torch

    with torch.set_grad_enabled(kind == "train"):
        out = dict(model(**inputs))
    if kind == "train":
        (out["loss"] if "loss" in out else out["last_hidden_state"].float().sum()).backward()


CONTRACTIONS: Mapping[str, tuple[str, tuple[tuple[int, ...], ...], str]] = {
    "linear": ("F.linear(a, b)", ((4096, 1024), (4096, 1024)), "bfloat16"),
    "linear_gelu": ("F.gelu(F.linear(a, b, c))", ((4096, 1024), (4096, 1024), (4096,)), "bfloat16"),
    "linear_residual": ("F.linear(a, b, c) + d", ((4096, 4096), (1024, 4096), (1024,), (4096, 1024)), "float16"),
    "linear_float32": ("F.relu(F.linear(a, b, c))", ((512, 256), (1000, 256), (1000,)), "float32"),
    "norm_linear": ("F.linear(F.layer_norm(a, (512,)), b)", ((2048, 512), (1536, 512)), "bfloat16"),
    "one_row": ("F.silu(a @ b) * (a @ c)", ((1, 4096), (4096, 11008), (4096, 11008)), "bfloat16"),
    "few_rows": ("F.linear(a, b, c).relu()", ((8, 4096), (4096, 4096), (4096,)), "float16"),
    "many_rows": ("(a @ b).sigmoid()", ((262144, 32), (32, 64)), "bfloat16"),
    "few_terms": ("(a @ b) * 2 + 1", ((8192, 3), (3, 1024)), "float32"),
    "softmax_product": ("torch.softmax(a, -1) @ b", ((1024, 1024), (1024, 64)), "bfloat16"),
    "batched": ("torch.bmm(a, b).tanh()", ((64, 128, 64), (64, 64, 128)), "bfloat16"),
    "outer": ("torch.einsum('bi,bj->bij', a, b)", ((256, 64), (256, 96)), "float32"),
    "three": ("F.linear(a, b), F.linear(a, c), F.linear(a, d)", ((512, 768), *(((768, 768),) * 3)), "bfloat16"),
    "conv_1x1": ("F.relu(F.conv2d(a, b))", ((16, 64, 56, 56), (256, 64, 1, 1)), "float16"),
    "conv_3x3": ("F.relu(F.conv2d(a, b, c, padding=1))", ((8, 64, 28, 28), (64, 64, 3, 3), (64,)), "bfloat16"),
    "conv_depthwise": ("F.conv2d(a, b, padding=1, groups=96)", ((8, 96, 28, 28), (96, 1, 3, 3)), "float16"),
    "attention": ("F.scaled_dot_product_attention(a, b, c)", ((8, 12, 512, 64),) * 3, "bfloat16"),
    "causal": ("F.scaled_dot_product_attention(a, b, c, is_causal=True)", ((4, 16, 1024, 64),) * 3, "bfloat16"),
    "masked": (
        "F.scaled_dot_product_attention(a, b, c, attn_mask=d)",
        (*(((4, 8, 256, 64),) * 3), (4, 1, 256, 256)),
        "float16",
    ),
    "decode": ("F.scaled_dot_product_attention(a, b, c)", ((4, 32, 1, 128), *(((4, 32, 4096, 128),) * 2)), "bfloat16"),
    "grouped_queries": (
        "F.scaled_dot_product_attention(a, b, c, enable_gqa=True)",
        ((2, 32, 128, 128), *(((2, 8, 128, 128),) * 2)),
        "bfloat16",
    ),
    "rows_softmax": ("torch.softmax(a * 2, -1)", ((4096, 32000),), "bfloat16"),
    "batch_norm": ("F.batch_norm(a, None, None, training=True).relu()", ((32, 64, 56, 56),), "float32"),
    "column_sums": ("(a * b).sum(0), a.float().sum()", ((16384, 1024),) * 2, "bfloat16"),
}
"""Expressions over a, b, c and d, the sizes of these, and their type. Their names are the folders'."""


def _contraction(name: str, texts: dict[str, str]) -> tuple[Run, bool]:
    import torch

    text, sizes, dtype = CONTRACTIONS[name]
    texts["program.py"] = f"{text}  # {dtype} {sizes}"
    scope = {"torch": torch, "F": torch.nn.functional}

    def run(backend: Callable[..., Any]) -> None:
        function = eval(f"lambda {', '.join('abcd'[: len(sizes)])}: ({text})", scope)
        # torch picks its attention by the device, so that a graph of the CPU cannot stand for one of a GPU.
        for device in ("cpu", "cuda"):
            with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
                inputs = [torch.empty(size, dtype=getattr(torch, dtype), device=device) for size in sizes]
            with torch.no_grad():
                torch.compile(function, backend=backend, dynamic=False)(*inputs)

    return run, False


FLEX: Mapping[str, str] = {
    "near": "flex_attention(a, b, c, lambda s, b, h, q, k: s * 0.5 + (q - k))",
    "shared": "flex_attention(a, b[:, :2], c[:, :2], lambda s, b, h, q, k: s + d[h], enable_gqa=True, return_lse=True)",
    "causal": "flex_attention(a, b, c, block_mask=create_block_mask(below, None, None, 256, 256, device='cpu'))",
    "few": "flex_attention(a[:, :, :1], b, c)",
}
"""Expressions over a, b and c, (2, 8, 256, 64) in bfloat16, and d, of 8 elements."""


def _flex(name: str, texts: dict[str, str]) -> tuple[Run, bool]:
    import torch
    from torch.nn.attention import flex_attention

    texts["program.py"] = FLEX[name]
    scope = {**vars(flex_attention), "below": lambda b, h, q, k: q >= k}

    def run(backend: Callable[..., Any]) -> None:
        function = eval(f"lambda a, b, c, d: ({FLEX[name]})", scope)
        inputs = [torch.randn(2, 8, 256, 64, dtype=torch.bfloat16) for _ in "abc"]
        with torch.no_grad():
            torch.compile(function, backend=backend, dynamic=False)(*inputs, torch.randn(8))

    return run, False


PLANES: Mapping[str, tuple[str, tuple[int, ...], str]] = {
    "max_pool": ("F.max_pool2d(a.relu(), 3, 2, 1)", (2, 8, 31, 32), "bfloat16"),
    "max_pool_of_two": ("F.max_pool2d(a.relu(), 2)", (2, 8, 32, 32), "float32"),
    "max_pool_dilated": ("F.max_pool2d(a, 3, 1, 1, dilation=2)", (2, 4, 17, 19), "float32"),
    "max_pool_large": ("F.max_pool2d(a, (6, 7), (2, 1), (3, 2))", (2, 3, 22, 21), "float32"),
    "max_pool_1d": ("F.max_pool1d(a * 2, 3, 2)", (2, 8, 64), "float32"),
    "max_pool_3d": ("F.max_pool3d(a, 2, 1, ceil_mode=True)", (2, 3, 5, 6, 7), "float32"),
    "max_unpool": ("F.max_unpool2d(*F.max_pool2d(a, 2, return_indices=True), 2)", (2, 4, 16, 16), "float32"),
    "avg_pool": ("F.avg_pool2d(a.exp(), 3, 2, 1, count_include_pad=False)", (2, 8, 31, 32), "bfloat16"),
    "avg_pool_divided": ("F.avg_pool2d(a, 2, ceil_mode=True, divisor_override=3)", (2, 8, 31, 33), "float32"),
    "avg_pool_large": ("F.avg_pool2d(a, 40, ceil_mode=True)", (2, 8, 31, 32), "float32"),
    "avg_pool_1d": ("F.avg_pool1d(a, 3, 2, 1)", (2, 8, 65), "float16"),
    "avg_pool_3d": ("F.avg_pool3d(a, (2, 3, 2), 2, 1)", (2, 3, 6, 7, 5), "float32"),
    "adaptive_avg": ("F.adaptive_avg_pool2d(a, (3, 5))", (2, 8, 16, 17), "float32"),
    "adaptive_avg_3d": ("F.adaptive_avg_pool3d(a, (3, 5, 4))", (2, 3, 7, 10, 9), "float32"),
    "adaptive_max": ("F.adaptive_max_pool2d(a, (3, 5))", (2, 8, 16, 17), "float32"),
    "fractional_max": (
        "F.fractional_max_pool2d(a, 2, output_size=7, _random_samples=a.new_full((2, 8, 2), 0.5))",
        (2, 8, 16, 16),
        "float32",
    ),
    "nearest": ("F.interpolate(a, scale_factor=2).sin()", (2, 8, 16, 17), "bfloat16"),
    "nearest_exact": ("F.interpolate(a, size=(24, 20), mode='nearest-exact')", (2, 8, 16, 17), "float32"),
    "nearest_1d": ("F.interpolate(a, size=100)", (2, 8, 65), "float32"),
    "nearest_3d": ("F.interpolate(a, scale_factor=(2, 3, 1.5))", (1, 2, 4, 5, 6), "float32"),
    "linear": ("F.interpolate(a, size=100, mode='linear')", (2, 8, 65), "float32"),
    "bilinear": ("F.interpolate(a, scale_factor=2, mode='bilinear')", (2, 8, 16, 17), "float16"),
    "bilinear_shrunk": (
        "F.interpolate(a, size=(7, 3), mode='bilinear', align_corners=True)",
        (2, 8, 64, 64),
        "float32",
    ),
    "trilinear": ("F.interpolate(a, scale_factor=2, mode='trilinear')", (1, 2, 4, 5, 6), "float32"),
    "bicubic": ("F.interpolate(a, scale_factor=1.5, mode='bicubic')", (2, 8, 16, 17), "float32"),
    "grid_sample": (
        "F.grid_sample(a, a[:, 0, :, :2, None].expand(-1, -1, -1, 2), padding_mode='border', align_corners=False)",
        (2, 4, 8, 9),
        "float32",
    ),
    "unfold": ("a.unfold(2, 6, 3).unfold(3, 6, 3) * 2", (2, 4, 21, 24), "float32"),
    "columns": ("F.fold(F.unfold(a, 3, padding=1) * 2, (16, 17), 3, padding=1)", (2, 4, 16, 17), "float32"),
}
"""Expressions over an image, plane or row a, its size and its type: pooling, resampling, windows."""


def _planes(name: str, texts: dict[str, str]) -> tuple[Run, bool]:
    import torch

    name, _, kind = name.partition(".")
    text, size, dtype = PLANES[name]
    texts["program.py"] = f"{text}  # {dtype} {size}"
    scope = {"torch": torch, "F": torch.nn.functional}

    def run(backend: Callable[..., Any]) -> None:
        function = eval(f"lambda a: ({text})", scope)
        for order in (torch.contiguous_format, torch.channels_last):
            a = torch.randn(size, dtype=getattr(torch, dtype))
            if order == torch.channels_last and len(size) != 4:
                continue
            a = a.contiguous(memory_format=order).requires_grad_()
            torch.compile(function, backend=backend, dynamic=kind == "dynamic")(a).sum().backward()

    return run, True


# ---------------------------------------------------------------------------------------------------------- its texts


@cache
def _plugins() -> Any:
    """The plugins of the tree in PYTHONPATH, where dists lie there; else those that are installed. A virtual
    environment may have dists of another commit."""
    folders = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    dists = list(importlib.metadata.distributions(path=folders)) if folders else []
    if not any(dist.name == "litz" for dist in dists):
        return None
    points = [point for dist in dists for point in dist.entry_points if point.group == "litz"]
    return of_litz("make_plugins")(of_litz("builtin_plugins")(), entry_points=points)


@cache
def _compiler(device: str, folder: str) -> Any:
    import torch

    compiler = of_litz("make_compiler")(None, {"cache_dir": folder}, _plugins())
    compiler.targets[torch.device("cpu")] = of_litz("cpu_target")(CPU_THREADS)
    if device in GPUS:
        compiler.targets[torch.device("cuda", 0)] = of_litz("target_named")(GPUS[device])
    return compiler


def texts_of(item: Item, folder: str, parse: bool = False) -> dict[str, str]:
    """Returns the texts of all graphs of an item, by their paths. folder: for a disk cache. parse: see `not_read`."""
    import torch

    from support.to_cuda import to_cuda, zeros_like_outputs

    torch._dynamo.reset()
    torch.manual_seed(0)
    texts: dict[str, str] = {}
    count: dict[str, int] = {}

    def keep(graph: Any) -> Callable[[list[Any]], Any]:
        kind = graph.name.rpartition("_")[2]
        count[kind] = count.get(kind, 0) + 1
        name = f"{kind}{count[kind]}"
        values = (node.meta.get("val") for node in graph.placeholders)
        is_cuda = any(isinstance(value, torch.Tensor) and value.is_cuda for value in values)
        for device in GPUS if is_cuda else CPU if item.has_own_cuda else (*CPU, *GPUS):
            moved = replace(to_cuda(graph) if device in GPUS and not is_cuda else graph, name=name)
            texts.update(
                (f"{name}/{device}/{path}", text) for path, text in graph_texts(moved, _compiler(device, folder), parse)
            )

        def run(args: list[Any]) -> Any:
            found = None if computed else zeros_like_outputs(graph)
            return torch.fx.Interpreter(graph.module).run(*args) if found is None else found

        return run

    # With a name of its own: torch's errors say which backend failed.
    def backend(module: Any, inputs: Sequence[Any]) -> Any:
        return of_litz("capture")(module, inputs, compile_graph=keep, compiler=_compiler("cpu", folder))

    run, computed = item.run(texts)
    for device in ("cpu", *GPUS):
        _compiler(device, folder)  # options or plugins that are refused end everything, not one item after the other
    stay_wide = f"{of_litz('stay_wide').__module__}.stay_wide"
    # A capture asks what the processor computes well, and this one is no part of what is compared.
    with mock.patch(stay_wide, lambda target: False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            run(backend)
        except Exception as error:  # some programs are refused, by eager or by torch's trace
            texts["raised.txt"] = "\n".join([type(error).__name__, *str(error).splitlines()[:2]])
    return {path: cleaned(text) for path, text in texts.items()}


def graph_texts(graph: Any, compiler: Any, parse: bool = False) -> Iterator[tuple[str, str]]:
    """Yields the texts that the stages make of a graph, and the names of their files. parse: also what of them is not
    read back."""
    log = of_litz("Log")()
    try:
        prepared, program, schedule = _scheduled(graph, compiler, log)
        yield "graph.txt", str(prepared)
        yield "program.txt", str(program)
        yield "schedule.txt", str(schedule)
        wrong = "\n\n".join(not_read(program, schedule)) if parse else ""
        if wrong:
            yield NOT_READ, wrong
        plan = of_litz("plan_schedule")(schedule, compiler, log)
        yield "plan.txt", "\n".join(_plan_lines(plan))
        sources = of_litz("generate")(plan, compiler, log.note)
        for name, source in sources.items():
            yield f"kernels/{name}.txt", "\n".join(_source_lines(source))
        wrapper = of_litz("generate_wrapper")(plan, sources)
        yield "wrapper.txt", f"{wrapper.text}\n{sorted(wrapper.objects)}"
    except Exception as error:
        yield "raised.txt", f"{type(error).__name__}: {error}"
    yield "decisions.txt", "\n".join(_decision_lines(log))


def _scheduled(graph: Any, compiler: Any, log: Any) -> tuple[Any, Any, Any]:
    """A graph after the graph passes, its program and its schedule."""
    try:
        schedule_program = of_litz("schedule_program")
    except ImportError:  # until November 2026 one function prepared and lowered
        lowered = of_litz("lower_graph")(graph, compiler, log)
        return lowered.graph, lowered.program, of_litz("schedule_lowered")(lowered, compiler, log)
    prepared = of_litz("prepare_graph")(graph, compiler, log)
    program = of_litz("lower_graph")(prepared, compiler, log)
    return prepared, program, schedule_program(prepared, program, compiler, log)


def not_read(program: Any, schedule: Any) -> Iterator[str]:
    """Yields what is wrong with what is read of the texts of a program, of a schedule and its program, and of each
    kernel's plan: it has to be what was printed."""

    def check(printed: Any, read: Callable[[str], Any]) -> Iterator[str]:
        text = str(printed)
        try:
            found = read(text)
        except Exception as error:
            yield f"{type(error).__name__}: {error}\n{text}"
            return
        if found != printed or str(found) != text:
            yield f"read as\n{found}\nprinted as\n{text}"

    for each in (program, schedule.program):
        yield from check(each, partial(of_litz("parse_program"), objects=of_litz("objects_in")(each)))
    for each in (schedule,) if schedule.cases is None else schedule.cases.distinct:
        yield from check(replace(each, cases=None), partial(of_litz("parse_schedule"), program=each.program))
    for part in (part for kernel in schedule.kernels for part in kernel.parts):
        yield from check(of_litz("plan_kernel")(part, schedule.program), of_litz("parse_kernel_plan"))


def _plan_lines(plan: Any) -> Iterator[str]:
    """The plan's text, and what the text leaves out."""
    yield str(plan)
    for field in fields(plan):
        if field.name not in ("program", "steps", "targets", "cases"):
            yield f"{field.name} = {_canonical(getattr(plan, field.name))}"


def _source_lines(source: Any) -> Iterator[str]:
    for field in fields(source):
        if field.name != "text" and field.repr:
            yield f"{field.name} = {_canonical(getattr(source, field.name))}"
    yield source.text


def _decision_lines(log: Any) -> Iterator[str]:
    for each in log.decisions:
        yield f"{each.plugin} {each.stage} {each.key} | {each}"
    for each in log.contractions:
        yield f"contraction {_canonical(each)}"


def _canonical(value: Any) -> str:
    """As repr, with sets in order."""
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(repr, value)))}}}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_canonical(each)}' for key, each in value.items())}}}"
    if hasattr(value, "__dataclass_fields__"):
        parts = (f"{field.name}={_canonical(getattr(value, field.name))}" for field in fields(value))
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, tuple):
        return f"({', '.join(map(_canonical, value))})"
    return repr(value)


ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b|(?<= at )0x[0-9a-f]+")
PATH = re.compile(r"/[\w.+-]+(?:/[\w.+-]+)+\.(?:py|so|cpp)(?::\d+)?")

MODULE = re.compile(r"(?<=from )litz[\w.]*(?= import )|(?<=python -m )litz[\w.]*")
"""A module of litz's that a text imports from, or says how to run: modules move, and what they have stays."""


def cleaned(text: str) -> str:
    """Returns a text without the addresses of objects, the paths of files and the places of litz's modules."""
    return MODULE.sub("litz", PATH.sub("PATH", ADDRESS.sub("ADDRESS", text)))


# --------------------------------------------------------------------------------------------------- write and compare


def _write_item(item: Item, folder: Path, cache_folder: str, parse: bool = False) -> tuple[str, int, float]:
    start = time.perf_counter()
    found = texts_of(item, cache_folder, parse)
    for path, text in found.items():
        file = folder / item.name / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    return item.name, len(found), time.perf_counter() - start


def _prepare() -> None:
    """What a process needs before it compiles: one that a person's settings do not change."""
    for name in [name for name in os.environ if name.startswith("LITZ_")]:
        del os.environ[name]
    tests = str(Path(__file__).parents[1] / "tests")
    if tests not in sys.path:
        sys.path.append(tests)
    import torch

    torch.set_num_threads(1)


def write(folder: Path, programs: int, jobs: int, only: str, parse: bool = False) -> int:
    """Writes the texts of all items. parse: and what is not read back. Returns the number of files."""
    shutil.rmtree(folder, ignore_errors=True)
    chosen = [item for item in items(programs) if re.search(only, item.name)]
    files = 0
    with tempfile.TemporaryDirectory() as cache_folder, contextlib.ExitStack() as stack:
        work = partial(_write_item, folder=folder, cache_folder=cache_folder, parse=parse)
        results: Any
        if jobs == 1:
            _prepare()
            results = map(work, chosen)
        else:
            pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(jobs, _prepare))
            results = pool.imap_unordered(work, chosen)
        for name, count, seconds in results:
            files += count
            print(f"{name}: {count} files, {seconds:.1f} s", flush=True)
    raised = sorted(folder.rglob("raised.txt"))
    print("".join(f"raised: {path}: {path.read_text(encoding='utf-8')}" for path in raised), end="")
    return files


def compare(old: Path, new: Path) -> list[str]:
    """Returns a line for each file that differs or that one folder alone has, with the first lines that differ."""
    found = []
    names = {path.relative_to(root) for root in (old, new) for path in root.rglob("*") if path.is_file()}
    for name in sorted(names):
        missing = [str(root) for root in (old, new) if not (root / name).is_file()]
        if missing:
            found.append(f"{name}: not in {missing[0]}")
            continue
        before, after = ((root / name).read_text(encoding="utf-8") for root in (old, new))
        if before != after:
            lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), "", "", "", "", 1, ""))[2:]
            more = [f"    ... {len(lines) - SHOWN} more lines"] if len(lines) > SHOWN else []
            found.append("\n".join([f"{name}:", *(f"    {line}" for line in lines[:SHOWN]), *more]))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Writes or compares. Returns the exit status: 1 where texts differ, 2 where there are none."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.same_texts", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write", help="write the texts of every stage")
    writing.add_argument("folder", type=Path)
    writing.add_argument("--programs", type=int, default=200, help="of the fuzzer")
    writing.add_argument("--jobs", type=int, default=1, help="processes")
    writing.add_argument("--only", default="", help="a regular expression: of the items, those that it is found in")
    writing.add_argument(
        "--parse", action="store_true", help="also check that programs, schedules and plans are read back"
    )
    comparing = commands.add_parser("compare", help="show which texts differ")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    args = parser.parse_args(argv)
    if args.command == "write":
        start = time.perf_counter()
        files = write(args.folder, args.programs, args.jobs, args.only, args.parse)
        print(f"{files} files in {time.perf_counter() - start:.0f} s")
        wrong = sorted(args.folder.rglob(NOT_READ))
        print("".join(f"not read back: {path}\n" for path in wrong), end="")
        return 1 if wrong else 0 if files else 2
    differences = compare(args.old, args.new)
    count = sum(1 for path in args.new.rglob("*") if path.is_file())
    print("\n".join([*differences, f"{len(differences)} of {count} files differ"]))
    return 1 if differences else 0 if count else 2


if __name__ == "__main__":
    sys.exit(main())
