"""The cost model: FLOPs and bytes by hand, devices by name, the roofline's bounds, and calibration files."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch

from litz.cost import Roofline, Work, count_work, estimate, estimate_work
from litz.ir import (
    Buffer,
    Collective,
    Extern,
    Layout,
    Loop,
    Node,
    Program,
    Range,
    Store,
    Template,
    TensorRef,
    Wait,
)
from litz.ir.build import call, const, load, reduce
from litz.ir.index import Expr, loop_var, placeholder, reduction_var, to_expr
from litz.logs.units import UNKNOWN_SIZE
from litz.options import make_options
from litz.target import (
    CalibrationError,
    UnknownDeviceError,
    cpu_target,
    cuda_target,
    load_calibration,
    target_named,
    target_of,
)
from litz.target.devices import all_specs, default_gpu, families, find_spec
from litz_plugins import make_plugins
from litz_tools.device_file import Measured, write_file

CUDA = torch.device("cuda")
H100 = target_named("NVIDIA H100 80GB HBM3")
aten = torch.ops.aten
I0, I1, R0 = loop_var(0), loop_var(1), reduction_var(0)
F32, BF16 = torch.float32, torch.bfloat16


def buffer(name: str, *size: int | Expr, dtype: torch.dtype = F32, kind: Any = "input") -> Buffer:
    return Buffer(name, dtype, CUDA, Layout.contiguous(size), kind)


def program(*buffers: Buffer, **fields: Any) -> Program:
    return Program("test", (), {b.name: b for b in buffers}, (), (), **fields)


def ranges(*sizes: int | Expr) -> tuple[Range, ...]:
    return tuple(Range(loop_var(n), to_expr(size)) for n, size in enumerate(sizes))


def loop(stores: list[Store], *sizes: int | Expr, reduction: int | Expr | None = None) -> Loop:
    inner = () if reduction is None else (Range(R0, to_expr(reduction)),)
    return Loop("loop", CUDA, ranges(*sizes), inner, tuple(stores))


def extern(target: Any, *args: Any, outputs: tuple[str | None, ...] = ("out",), **kwargs: Any) -> Extern:
    return Extern("call", CUDA, target, args, kwargs, outputs)


def ref(b: Buffer, layout: Layout | None = None) -> TensorRef:
    return TensorRef(b.name, layout or b.layout)


def flops_of(work: Work) -> float:
    return work.total_flops


# ---------------------------------------------------------------------------------------------------------- loops


def test_pointwise_counts_each_element_once() -> None:
    x, y = buffer("x", 128, 64), buffer("y", 128, 64)
    value = load("x", (I0, I1), F32)
    work = count_work(loop([Store("y", (I0, I1), call("add", value, value))], 128, 64), program(x, y))
    assert (work.kind, work.bytes_read, work.bytes_written) == ("loop", 128 * 64 * 4, 128 * 64 * 4)
    assert flops_of(work) == 128 * 64


def test_a_broadcast_load_costs_its_buffer() -> None:
    x, w, y = buffer("x", 128, 64), buffer("w", 64), buffer("y", 128, 64)
    value = call("mul", load("x", (I0, I1), F32), load("w", (I1,), F32))
    work = count_work(loop([Store("y", (I0, I1), value)], 128, 64), program(x, w, y))
    assert work.bytes_read == 128 * 64 * 4 + 64 * 4


def test_overlapping_loads_cost_no_more_than_the_buffer() -> None:
    x, y = buffer("x", 100), buffer("y", 98)
    parts = [load("x", (I0 + shift,), F32) for shift in range(3)]
    value = call("add", call("add", parts[0], parts[1]), parts[2])
    work = count_work(loop([Store("y", (I0,), value)], 98), program(x, y))
    assert work.bytes_read == 100 * 4


def test_a_slice_costs_the_slice() -> None:
    x, y = buffer("x", 1000), buffer("y", 10)
    work = count_work(loop([Store("y", (I0,), load("x", (I0 + 500,), F32))], 10), program(x, y))
    assert work.bytes_read == 10 * 4


def test_a_column_costs_its_sectors() -> None:
    x, y = buffer("x", 1000, 1000), buffer("y", 1000)
    work = count_work(loop([Store("y", (I0,), load("x", (I0, to_expr(3)), F32))], 1000), program(x, y))
    assert work.bytes_read == 1000 * 32
    column = loop([Store("y", (I0,), load("x", (I0, to_expr(3)), F32))], 1000)
    assert count_work(column, program(x, y), replace(H100, sector_bytes=64)).bytes_read == 1000 * 64
    every_other = loop([Store("y", (I0,), load("x", (to_expr(0), 2 * I0), F32))], 500)
    assert count_work(every_other, program(x, y)).bytes_read == 500 * 8


def test_a_transposed_load_costs_no_more_than_the_buffer() -> None:
    x, y = buffer("x", 64, 32), buffer("y", 32, 64)
    work = count_work(loop([Store("y", (I0, I1), load("x", (I1, I0), F32))], 32, 64), program(x, y))
    assert work.bytes_read == 64 * 32 * 4


def test_a_gather_costs_the_rows_it_takes() -> None:
    table, index, y = buffer("t", 50000, 64), buffer("i", 10, dtype=torch.int64), buffer("y", 10, 64)
    row = load("i", (I0,), torch.int64)
    value = load("t", (placeholder(0), I1), F32, (row,))
    work = count_work(loop([Store("y", (I0, I1), value)], 10, 64), program(table, index, y))
    assert work.bytes_read == 10 * 64 * 4 + 10 * 8


def test_a_reduction_counts_its_inner_points() -> None:
    x, y = buffer("x", 8, 1024), buffer("y", 8)
    total = reduce("sum", call("exp", load("x", (I0, R0), F32)))
    scaled = call("mul", total, const(0.5, F32))
    work = count_work(loop([Store("y", (I0,), scaled)], 8, reduction=1024), program(x, y))
    assert (work.bytes_read, work.bytes_written) == (8 * 1024 * 4, 8 * 4)
    assert flops_of(work) == 8 * 1024 * (8 + 1) + 8  # exp is 8, the sum 1; the product is outside


def test_an_atomic_store_reads_what_it_adds_to() -> None:
    x, y = buffer("x", 64), buffer("y", 64)
    work = count_work(loop([Store("y", (I0,), load("x", (I0,), F32), mode="add")], 64), program(x, y))
    assert (work.bytes_read, work.bytes_written) == (2 * 64 * 4, 64 * 4)


def test_half_types_compute_in_float32() -> None:
    x, y = buffer("x", 64, dtype=BF16), buffer("y", 64, dtype=BF16)
    work = count_work(loop([Store("y", (I0,), call("neg", load("x", (I0,), BF16)))], 64), program(x, y))
    assert dict(work.flops) == {F32: 64.0}
    assert work.bytes_read == 128


def test_symbolic_sizes_count_with_their_hints() -> None:
    s0 = sympy.Symbol("s0", integer=True, positive=True)
    u0 = sympy.Symbol("u0", integer=True, positive=True)
    value: Node = load("x", (I0,), F32)
    for symbol, fields, count in [(s0, {"hints": {s0: 77}}, 77), (u0, {}, UNKNOWN_SIZE)]:
        x, y = buffer("x", symbol), buffer("y", symbol)
        work = count_work(loop([Store("y", (I0,), value)], symbol), program(x, y, **fields))
        assert work.bytes_read == count * 4


def test_no_elements_no_work() -> None:
    x, y = buffer("x", 0), buffer("y", 0)
    work = count_work(loop([Store("y", (I0,), load("x", (I0,), F32))], 0), program(x, y))
    assert work.kind == "none"
    assert estimate_work(work, H100).us == 0.0


# ---------------------------------------------------------------------------------------------------- library calls


def matmuls() -> list[Any]:
    a, b, c = buffer("a", 10, 30), buffer("b", 30, 20), buffer("c", 10, 20)
    x, y, out3 = buffer("x", 4, 10, 30), buffer("y", 4, 30, 20), buffer("out", 4, 10, 20)
    v, row = buffer("v", 30), buffer("out", 10)
    w, rows = buffer("w", 20, 30), buffer("out", 4, 10, 20)
    out2, scalar = buffer("out", 10, 20), buffer("out")
    return [
        (aten.mm.default, [a, b], out2, 2 * 10 * 20 * 30),
        (aten.addmm.default, [c, a, b], out2, 2 * 10 * 20 * 30),
        (aten.bmm.default, [x, y], out3, 2 * 4 * 10 * 20 * 30),
        (aten.baddbmm.default, [out3, x, y], out3, 2 * 4 * 10 * 20 * 30),
        (aten.addbmm.default, [c, x, y], out2, 2 * 4 * 10 * 20 * 30),
        (aten.mv.default, [a, v], row, 2 * 10 * 30),
        (aten.dot.default, [v, v], scalar, 2 * 30),
        (aten.linear.default, [x, w], rows, 2 * 4 * 10 * 20 * 30),
    ]


@pytest.mark.parametrize(("target", "args", "out", "flops"), matmuls(), ids=lambda value: str(value)[:20])
def test_matmuls(target: Any, args: list[Buffer], out: Buffer, flops: int) -> None:
    work = count_work(extern(target, *map(ref, args)), program(*args, out))
    assert (work.kind, flops_of(work)) == ("matmul", flops)
    distinct = {b.name: b for b in args}.values()
    assert work.bytes_read == sum(program().hint(b.nbytes) for b in distinct)


@pytest.mark.parametrize(
    ("function", "image", "weight", "options"),
    [
        ("conv1d", (33, 16, 30), (20, 16, 5), {}),
        ("conv2d", (8, 4, 3, 3), (1, 4, 5, 5), {"padding": (1, 1)}),
        ("conv2d", (2, 8, 9, 9), (12, 2, 3, 3), {"groups": 4, "stride": (2, 2)}),
        ("conv3d", (2, 3, 8, 8, 8), (5, 3, 3, 3, 3), {}),
        ("conv_transpose2d", (8, 1, 1, 1), (1, 4, 5, 5), {"padding": (1, 1)}),
        ("conv_transpose2d", (2, 6, 5, 5), (6, 2, 3, 3), {"groups": 3, "stride": (2, 2)}),
    ],
)
def test_convolutions_agree_with_torchs_counter(
    function: str, image: tuple[int, ...], weight: tuple[int, ...], options: dict[str, Any]
) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    x = torch.randn(image, requires_grad=True)
    w = torch.randn(weight, requires_grad=True)
    with FlopCounterMode(display=False) as forward:
        out = getattr(torch.nn.functional, function)(x, w, **options)
    with FlopCounterMode(display=False) as backward:
        out.sum().backward()
    spatial = len(image) - 2
    transposed = function.startswith("conv_transpose")
    tail = (
        tuple(options.get("stride", (1,) * spatial)),
        tuple(options.get("padding", (0,) * spatial)),
        (1,) * spatial,
        transposed,
        (0,) * spatial,
        options.get("groups", 1),
    )
    bx, bw, bo = buffer("x", *image), buffer("w", *weight), buffer("out", *out.shape)
    forward_call = extern(aten.convolution.default, ref(bx), ref(bw), None, *tail)
    work = count_work(forward_call, program(bx, bw, bo))
    assert work.kind == "convolution"
    groups = options.get("groups", 1)
    # torch's counter takes a transposed convolution's groups for one.
    theirs = forward.get_total_flops() if not (transposed and groups > 1) else flops_of(work)
    assert flops_of(work) == theirs

    gx, gw = buffer("gx", *image), buffer("gw", *weight)
    mask = (True, True, False)
    call_ = extern(
        aten.convolution_backward.default, ref(bo), ref(bx), ref(bw), None, *tail, mask, outputs=("gx", "gw", None)
    )
    assert flops_of(count_work(call_, program(bx, bw, bo, gx, gw))) == 2 * flops_of(work)
    if groups == 1:
        assert backward.get_total_flops() == 2 * flops_of(work)


def test_attention() -> None:
    q, k, v = (buffer(name, 2, 8, 128, 64, dtype=BF16) for name in "qkv")
    out = buffer("out", 2, 8, 128, 64, dtype=BF16)
    forward = extern(aten._scaled_dot_product_flash_attention.default, ref(q), ref(k), ref(v))
    whole = count_work(forward, program(q, k, v, out))
    assert (whole.kind, flops_of(whole)) == ("attention", 4 * 2 * 8 * 128 * 128 * 64)
    causal = extern(aten._scaled_dot_product_flash_attention.default, ref(q), ref(k), ref(v), 0.0, True)
    assert flops_of(count_work(causal, program(q, k, v, out))) == flops_of(whole) / 2
    backward = extern(aten._scaled_dot_product_flash_attention_backward.default, ref(out), ref(q), ref(k), ref(v))
    assert flops_of(count_work(backward, program(q, k, v, out))) == 2.5 * flops_of(whole)


def test_a_unit_reads_all_keys_of_a_head_where_they_are_not_split() -> None:
    q, k, v = (buffer(name, 1, 32, keys, 128, dtype=BF16) for name, keys in (("q", 1), ("k", 2048), ("v", 2048)))
    out, gpu = buffer("out", 1, 32, 1, 128, dtype=BF16), target_named("H100")
    whole = extern(aten._scaled_dot_product_efficient_attention.default, ref(q), ref(k), ref(v), None, False)
    split = extern(aten._scaled_dot_product_flash_attention.default, ref(q), ref(k), ref(v))
    slow, fast = (estimate(call, gpu, program(q, k, v, out)) for call in (whole, split))
    assert slow is not None and fast is not None
    # 1 MB at 64 bytes a cycle, and a launch; where nothing has to be read alone, the bytes may come from the cache.
    assert 9 < slow.low_us < 11 and fast.low_us < 7
    assert slow.us == fast.us


def test_other_calls_count_their_bytes() -> None:
    x, out = buffer("x", 1000), buffer("out", 1000)
    work = count_work(extern(aten.cumsum.default, ref(x), 0), program(x, out))
    assert (work.kind, work.bytes_read, work.bytes_written) == ("other", 4000, 4000)
    expanded = Layout((to_expr(50), to_expr(1000)), (to_expr(0), to_expr(1)))
    work = count_work(extern(aten.sort.default, ref(x, expanded)), program(x, out))
    assert work.bytes_read == 4000


def test_a_mutation_is_written() -> None:
    x, y = buffer("x", 100), buffer("y", 100)
    call_ = replace(extern(aten.copy_.default, ref(x), ref(y), outputs=(None,)), mutates=("x",))
    assert count_work(call_, program(x, y)).bytes_written == 400


def test_library_lookups_cost_what_they_return() -> None:
    table, index, out = buffer("t", 50000, 64), buffer("i", 10, dtype=torch.int64), buffer("out", 10, 64)
    work = count_work(extern(aten.embedding.default, ref(table), ref(index)), program(table, index, out))
    assert work.bytes_read == 10 * 64 * 4 + 10 * 8


def test_views_waits_and_allocations_are_free() -> None:
    x, out = buffer("x", 100), buffer("out", 100)
    view = replace(extern(aten.view.default, ref(x), (10, 10)), aliases={"out": "x"})
    empty = extern(aten.empty.memory_format, (100,))
    wait = Wait("wait", CUDA, aten.view.default, (ref(x),), {}, (None,), ("x",))
    for operation in (view, empty, wait):
        assert estimate(operation, H100, program(x, out)).us == 0.0  # type: ignore[union-attr]


def test_a_collective_is_for_plugins() -> None:
    x, out = buffer("x", 100), buffer("out", 100)
    collective = Collective("all_reduce", CUDA, aten.clone.default, (ref(x),), {}, ("out",), group="0")
    assert estimate(collective, H100, program(x, out)) is None
    assert count_work(collective, program(x, out)).bytes_read == 400


def test_a_template_counts_as_its_library_twin() -> None:
    a, b, out = buffer("a", 10, 30), buffer("b", 30, 20), buffer("out", 10, 20)
    template = Template("mm", CUDA, aten.mm.default, (ref(a), ref(b)), {}, ("out",), kind="mm")
    assert flops_of(count_work(template, program(a, b, out))) == 2 * 10 * 20 * 30


# -------------------------------------------------------------------------------------------------------- devices


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("Tesla V100-SXM2-32GB", "V100 SXM2"),
        ("Tesla T4", "T4"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 3090", "RTX 3090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
    ],
)
def test_devices_by_the_drivers_name(name: str, row: str) -> None:
    found = find_spec(name)
    assert found is not None and found.name == row


def test_the_table_is_plausible() -> None:
    for row in all_specs():
        assert row.source and row.capability in families()
        assert row.vector["fp64"] <= row.vector["fp32"] <= row.vector["fp16"]
        # A family's figures are for the slowest of it: at most the table's, with a boost clock below 3 GHz.
        family = families()[row.capability]
        clock = row.vector["fp32"] * 1e12 / (2 * row.sms * family.fp32)
        assert 1.0e9 < clock < 3.0e9, f"{row.name}: {clock:.3g} Hz"
        if "fp16" in row.matrix:
            assert row.matrix["fp16"] >= 0.85 * 2 * family.half * row.sms * clock / 1e12, row.name


def test_a_missing_gpu_is_taken_for_an_h100() -> None:
    target = target_of(CUDA)
    assert target.name == default_gpu()
    assert target.assumed and "no GPU here" in target.source
    assert (target.units, target.bandwidth, target.abilities) == (H100.units, H100.bandwidth, H100.abilities)


def test_a_device_that_nobody_knows_is_no_gpu() -> None:
    target = target_of("xpu:1")
    assert (target.type, target.index, target.assumed) == ("xpu", 1, True)
    assert not target.abilities and target.bandwidth < target_of("cpu").bandwidth


def test_a_target_by_name() -> None:
    assert (target_named("L4").units, target_named("A100").bandwidth, target_named("B200").capability) == (
        58,
        1555e3,
        100,
    )
    with pytest.raises(UnknownDeviceError, match=r"'L5' is not among the devices that have a data file: .*L4"):
        target_named("L5")


def test_an_unknown_gpu_goes_by_its_clocks() -> None:
    facts = {"capability": 90.0, "clock_mhz": 1830.0, "peak_bandwidth_gb_s": 1000.0, "units": 66.0}
    on = cuda_target("NVIDIA H20X", facts)
    assert on.units == 66
    assert on.bandwidth == 1e6
    assert on.matrix["bf16"] / 1e6 == pytest.approx(989.4 / 2, rel=0.01)
    assert "has no data file" in on.source


def test_an_unknown_gpu_without_clocks_is_the_slowest_of_its_capability() -> None:
    on = cuda_target("NVIDIA Something", {"capability": 80.0})
    assert on.bandwidth == 933e3
    assert on.assumed


def test_a_slice_of_a_gpu_has_its_share() -> None:
    part = cuda_target("NVIDIA H100 80GB HBM3 MIG 3g.40gb", {"units": 60.0})
    assert part.bandwidth == pytest.approx(H100.bandwidth * 60 / 132)


def test_tf32_only_where_torch_allows_it() -> None:
    tf32 = replace(H100, tf32=frozenset({"matmul"}))
    assert H100.matrix_rate("fp32")[0] == H100.vector["fp32"]
    assert tf32.matrix_rate("fp32")[0] == tf32.matrix["tf32"]
    assert tf32.matrix_rate("fp32", "convolution")[0] == H100.vector["fp32"]


# ------------------------------------------------------------------------------------------------------- roofline


def test_what_bounds_the_time() -> None:
    on = H100
    tiny = estimate_work(Work("loop", {F32: 10.0}, 40, 40), on)
    assert tiny.us == pytest.approx(on.launch_us, abs=0.01) and "launch-bound" in tiny.why
    copy = estimate_work(Work("loop", {}, 1e9, 1e9), on)
    assert copy.us == pytest.approx(2e9 / (3.35e6 * 0.85) + on.launch_us) and copy.why.startswith("memory-bound: 2 GB")
    gemm = estimate_work(Work("matmul", {BF16: 1e12}, 1e6, 1e6, 4096), on)
    assert 1e12 / 989.4e6 < gemm.us < 2e12 / 989.4e6 and "TFLOP/s bf16" in gemm.why
    for found in (tiny, copy, gemm):
        assert found.low_us < found.us < found.high_us


def test_a_small_contraction_does_not_fill_the_machine() -> None:
    on = H100
    full, part = (estimate_work(Work("matmul", {BF16: 1e9}, 1, 1, pieces), on) for pieces in (4096, 1))
    assert part.us - on.launch_us == pytest.approx(132 * (full.us - on.launch_us))


def test_more_work_never_takes_less() -> None:
    on = H100
    times = [estimate_work(Work("loop", {F32: n}, n, n), on).us for n in (1e3, 1e5, 1e7, 1e9)]
    assert times == sorted(times)


def test_an_unmeasured_processor_has_a_wide_interval() -> None:
    work = Work("loop", {}, 1e8, 1e8)
    found = estimate_work(work, cpu_target(4))
    assert found.high_us > 4 * found.us and found.low_us < found.us / 2


def _bf16(*size: int) -> torch.Tensor:
    return torch.randn(size, dtype=BF16, device="cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("function", "args"),
    [
        (lambda x: x + 1, lambda: [torch.randn(1 << 26, device="cuda")]),
        (torch.nn.functional.gelu, lambda: [_bf16(1 << 24)]),
        (lambda x: x.sum(-1), lambda: [_bf16(8192, 8192)]),
        (torch.mm, lambda: [_bf16(8192, 8192), _bf16(8192, 8192)]),
        (torch.mm, lambda: [_bf16(512, 512), _bf16(512, 512)]),
        (torch.mm, lambda: [_bf16(16, 4096), _bf16(4096, 4096)]),
        (lambda x, w: torch.conv2d(x, w, padding=1), lambda: [_bf16(32, 256, 56, 56), _bf16(256, 256, 3, 3)]),
        (lambda q: torch.nn.functional.scaled_dot_product_attention(q, q, q), lambda: [_bf16(8, 16, 2048, 64)]),
    ],
    ids=["add", "gelu", "sum", "mm 8192", "mm 512", "mm 16 rows", "convolution", "attention"],
)
def test_a_gpu_takes_about_as_long(function: Any, args: Any) -> None:
    """Eager kernels replayed from a CUDA graph take what their estimates say, within the interval."""
    from litz.pipeline import make_compiler, plan_schedule, schedule_only

    if find_spec(torch.cuda.get_device_name()) is None:
        pytest.skip(f"{torch.cuda.get_device_name()} has no data file")
    tensors, repeat = args(), 10
    torch._dynamo.reset()
    (schedule,) = schedule_only(function, tensors)
    found = list(plan_schedule(schedule, make_compiler()).estimates.values())
    graph = torch.cuda.CUDAGraph()
    function(*tensors)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(repeat):
            function(*tensors)
    times = []
    for _ in range(10):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / repeat)
    us = min(times)  # who else is on the GPU can only add to a time
    print(f"estimated {sum(e.us for e in found):.1f} µs, measured {us:.1f} µs")
    assert sum(e.low_us for e in found) <= us <= sum(e.high_us for e in found)


def test_behind_the_hook() -> None:
    plugins = make_plugins([("roofline", Roofline())], entry_points=[])
    x, y = buffer("x", 64), buffer("y", 64)
    operation = loop([Store("y", (I0,), load("x", (I0,), F32))], 64)
    plugin, found = plugins.estimate_runtime_from(operation, H100, program(x, y)) or ("", None)
    assert plugin == "roofline"
    assert found == estimate(operation, H100, program(x, y))


# ---------------------------------------------------------------------------------------------------- calibration


def write_speeds(path: Path, type: str, name: str = "", **speeds: Any) -> None:
    write_file(path, type, name, [Measured("measured", speeds, "a test", "", "")])


def test_measured_figures_replace_the_tables(tmp_path: Path) -> None:
    write_speeds(tmp_path / "cuda.toml", "cuda", bandwidth_gb_s=500.0, launch_us=7.0, matrix_tflops={"bf16": 100.0})
    write_speeds(tmp_path / "cpu.toml", "cpu", launch_us=1.0)
    options = make_options(user_options={"calibration": tmp_path}, environ={})
    on = target_of(CUDA, options)
    assert (on.bandwidth, on.launch_us, on.matrix["bf16"]) == (500e3, 7.0, 100e6)
    assert on.matrix["fp16"] == target_of(CUDA).matrix["fp16"]
    # What was measured was reached: no share of it is taken off.
    assert estimate_work(Work("loop", {}, 1e9, 0), on).us == pytest.approx(2000 + 7)
    assert on.usual_bandwidth == 500e3
    assert target_of("cpu", options).launch_us == 1.0
    write_speeds(tmp_path / "cuda.toml", "cuda", bandwidth_gb_s=250.0)
    os.utime(tmp_path / "cuda.toml", ns=(1, 1))
    assert target_of(CUDA, options).bandwidth == 250e3


def test_a_devices_own_figures_go_before_those_of_its_type(tmp_path: Path) -> None:
    for number, name in enumerate(("", default_gpu())):
        write_speeds(tmp_path / f"{number}.toml", "cuda", name, launch_us=number + 1.0)
    found = load_calibration(tmp_path)
    assert found.figures("cuda", default_gpu()) == {"launch_us": 2.0}
    assert found.figures("cuda", "other") == {"launch_us": 1.0}
    assert found.figures("cpu", "") == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("not toml", "no TOML"),
        ("", 'needs a "type"'),
        ('name = "x"', 'needs a "type"'),
        ("type = 7", "type should be a string"),
        ('type = "cuda"\nmeasured = 3', "measured should be a table"),
        ('type = "cuda"\n[measured]\nbandwidth = 3', "'bandwidth', which is none of"),
        ('type = "cuda"\n[measured]\nbandwidth_gb_s = "fast"', "bandwidth_gb_s should be a positive number, is 'fast'"),
        ('type = "cuda"\n[measured]\nbandwidth_gb_s = -1', "should be a positive number, is -1"),
        ('type = "cuda"\n[measured]\nlaunch_us = true', "should be a positive number, is True"),
        ('type = "cuda"\n[measured]\nmatrix_tflops = 5', "matrix_tflops should be a table"),
        ('type = "cuda"\n[measured.matrix_tflops]\nfp12 = 5', "'fp12'; types are fp64"),
        ('type = "cuda"\nformat = 3', "'format', which no data file of litz or a plugin has"),
        ('type = "cuda"\n[tilings.two]\nvalue = 3', "'tilings.two', which no data file of litz or a plugin has"),
        ('type = "cuda"\n[tilings]\ntwo_loads_elements = 3', "two_loads_elements should be a table with a value"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(CalibrationError) as caught:
        load_calibration(path)
    message = str(caught.value)
    assert problem in message and str(path) in message and "litz calibrate" in message


def test_a_missing_file(tmp_path: Path) -> None:
    options = make_options(user_options={"calibration": tmp_path / "none.toml"}, environ={})
    with pytest.raises(CalibrationError, match="no such file"):
        target_of(CUDA, options)
