"""The Triton code generator without a GPU: its text, and every case compiled for sm_90."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from litz.codegen.kernel_plan import plan_kernel
from litz.ir import Buffer, Layout, Node, Program, Store
from litz.ir.build import bounded, call, cast, const, load, reduce
from litz.ir.index import PythonMod, loop_var, placeholder, reduction_var, to_expr
from litz.schedule.schedule import Kernel
from litz.target import target_of
from litz.targets.triton.codegen import TritonCodegen
from litz.targets.triton.compile import Variant
from litz.targets.triton.finish import choose_tilings
from litz_plugins import CodegenContext, KernelSource
from support.triton_cases import CASES, Case, each_form, forms, make, output
from support.triton_cases.case import CUDA
from support.triton_compiled import compile_only

pytestmark = pytest.mark.xdist_group("triton for sm_90")

i0, i1, r0 = loop_var(0), loop_var(1), reduction_var(0)
f32, bf16 = torch.float32, torch.bfloat16


def _problem(name: str) -> str:
    """ "" or what went wrong when a case was compiled."""
    try:
        return "" if compile_only(CASES[name]().source)["cubin"] else "no machine code"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def test_each_form_of_a_line_compiles_for_hopper() -> None:
    """The compiler refuses a type or a function in each case that has such a line."""
    chosen = each_form({name: make_case().source.text for name, make_case in CASES.items()})
    assert len(chosen) > 50
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        problems = dict(zip(chosen, pool.map(_problem, chosen), strict=True))
    assert {name: problem for name, problem in problems.items() if problem} == {}


def test_the_chosen_cases_have_each_form() -> None:
    texts = {name: make_case().source.text for name, make_case in CASES.items()}
    wanted = {form for text in texts.values() for form in forms(text)}
    assert {form for name in each_form(texts) for form in forms(texts[name])} == wanted
    line = "    tmp22 = tl.where(tmp3 < 2.5e-3, tmp1.to(tl.int64), 7)  # said\n"
    assert forms(f"head\n@triton.jit\ndef f(p0):\n{line}{line.replace('22', '23')}") == {
        "v = tl.where(v < 0, v.to(tl.type), 0)",
        "where tl.int64",
        "to tl.int64",
        "to(tl.int64)",
    }


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_compiles_for_hopper(name: str) -> None:
    assert _problem(name) == ""


def test_a_text_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a run, however many tests and processes ask for it; its module has another name each time."""
    from triton import knobs

    found: list[bool] = []
    monkeypatch.setattr(knobs.compilation, "listener", lambda cache_hit, **_: found.append(cache_hit))
    first, second = (compile_only(CASES["bias"]().source) for _ in range(2))
    assert found[-1] and first["cubin"] == second["cubin"]
    assert "litz-test-triton-cache-" in knobs.cache.dir or os.environ["TRITON_CACHE_DIR"] == knobs.cache.dir


def _accesses(ptx: str) -> set[str]:
    return set(re.findall(r"(?:ld|st)\.global\S*", ptx))


def _add(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> Case:
    position = tuple(loop_var(n) for n in range(len(size)))
    value = call("add", load("a", position, dtype), const(1, dtype))
    a = torch.empty_strided(size, stride, dtype=dtype)
    return make({"a": a}, [output("o", size, dtype)], size, [], [Store("o", position, value)])


@pytest.mark.parametrize("dtype", [f32, bf16])
def test_accesses_are_16_bytes_wide(dtype: torch.dtype) -> None:
    contiguous = compile_only(_add((1024, 1024), (1024, 1), dtype).source)["ptx"]
    assert _accesses(contiguous) == {"ld.global.v4.b32", "st.global.v4.b32"}
    transposed = compile_only(_add((1024, 1024), (1, 1024), dtype).source)["ptx"]
    assert _accesses(transposed) == {"ld.global.v4.b32", "st.global.v4.b32"}


def _softmax(rows: int, columns: int) -> Case:
    x = cast(load("a", (i0, r0), bf16), f32)
    power = call("exp", call("sub", x, reduce("max", x)))
    value = cast(call("div", power, reduce("sum", power)), bf16)
    inputs = {"a": torch.empty(rows, columns, dtype=bf16)}
    return make(inputs, [output("o", (rows, columns), bf16)], [rows], [columns], [Store("o", (i0, r0), value)])


def _layer_norm(rows: int, columns: int) -> Case:
    x = cast(load("a", (i0, r0), bf16), f32)
    value = call("mul", call("sub", x, reduce("welford_mean", x)), cast(load("w", (r0,), bf16), f32))
    inputs = {"a": torch.empty(rows, columns, dtype=bf16), "w": torch.empty(columns, dtype=bf16)}
    stores = [Store("o", (i0, r0), cast(value, bf16))]
    return make(inputs, [output("o", (rows, columns), bf16)], [rows], [columns], stores)


@pytest.mark.parametrize(
    ("case", "rows", "warps"),
    [
        (lambda: _softmax(2**18, 256), 4, 2),
        (lambda: _softmax(2**16, 1024), 1, 2),
        (lambda: _softmax(2**18, 197), 8, 2),  # not aligned: 32 elements a thread, of rows that begin alike
        (lambda: _softmax(2**10, 197), 2, 1),  # of few rows: 16 elements, of rows that follow each other
        (lambda: _softmax(2**16, 1001), 1, 2),  # they share nothing
        (lambda: _layer_norm(2**16, 1001), 4, 4),  # they share their weights
        (lambda: _softmax(2**14, 4096), 1, 8),
        (lambda: _layer_norm(2**18, 256), 4, 2),
        (lambda: _layer_norm(2**18, 197), 8, 2),
        (lambda: _layer_norm(2**18, 128), 8, 4),
        (lambda: _softmax(2**20, 64), 16, 4),
        (lambda: _softmax(2**20, 49), 8, 1),  # not aligned, and short: one warp
        (lambda: _layer_norm(2**16, 768), 1, 2),
    ],
)
def test_rows_a_program_and_its_warps(case: Callable[[], Case], rows: int, warps: int) -> None:
    """As an H200 measured: a layer norm of 256 columns takes 69 µs with 4 rows a program and 16 elements a thread, 74
    with 8, and 163 with one row and 4; of 1024 columns 69 µs with 16 elements a thread, 74 with 8, and 106 with 4."""
    source = case().source
    assert f"XBLOCK: tl.constexpr = {rows}\n" in source.text
    assert source.settings["num_warps"] == warps


def _gradient(columns: int, rows: int, written: bool = True) -> Case:
    """A product, and its sum over the rows."""
    value = call("mul", cast(load("a", (r0, i0), bf16), f32), cast(load("b", (r0, i0), bf16), f32))
    inputs = {name: torch.empty(rows, columns, dtype=bf16) for name in ("a", "b")}
    stores = [Store("p", (r0, i0), cast(value, bf16)), Store("o", (i0,), reduce("sum", value))]
    outputs = [output("p", (rows, columns), bf16), output("o", (columns,), f32)]
    return make(inputs, outputs[not written :], [columns], [rows], stores[not written :])


@pytest.mark.parametrize(
    ("columns", "written", "block", "warps"),
    [(24576, True, 64, 16), (49152, True, 64, 8), (24576, False, 64, 4)],
    ids=["384 programs", "768 programs", "nothing but sums"],
)
def test_a_block_of_columns_and_its_warps(columns: int, written: bool, block: int, warps: int) -> None:
    """The gradient of a gelu with its sum, 384 programs, took 35.2 us with 8 warps on an H200, and 30.7 with shorter
    blocks or more warps. Three programs of 16 warps are on an SM at a time. What only adds up takes 4 warps."""
    source = _gradient(columns, 512, written).source
    assert f"RBLOCK: tl.constexpr = {block}\n" in source.text
    assert source.settings["num_warps"] == warps


@pytest.mark.parametrize(("columns", "block", "warps"), [(1536, 64, 8), (49152, 16, 4)])
def test_a_program_that_has_a_multiprocessor_alone_takes_more_rows_at_a_time(
    columns: int, block: int, warps: int
) -> None:
    """Of 12 tensors, as the sums of many steps have them."""
    names = [f"a{n}" for n in range(12)]
    value = cast(load(names[0], (r0, i0), bf16), f32)
    for name in names[1:]:
        value = call("add", value, cast(load(name, (r0, i0), bf16), f32))
    inputs = {name: torch.empty(64, columns, dtype=bf16) for name in names}
    stores = [Store("o", (i0,), reduce("sum", value))]
    source = make(inputs, [output("o", (columns,), f32)], [columns], [64], stores).source
    assert f"RBLOCK: tl.constexpr = {block}\n" in source.text
    assert source.settings["num_warps"] == warps


@pytest.mark.parametrize("columns", [50257, 197])
def test_an_end_within_16_bytes_leaves_whole_accesses_to_all_programs_but_the_last(columns: int) -> None:
    """67093095 elements in rows of 50257 took 195 us on an H200, at 2 bytes an access, and an even total 73."""
    rows = 2**26 // columns
    value = call("add", load("a", (i0, i1), bf16), load("b", (i1,), bf16))
    inputs = {"a": torch.empty(rows, columns, dtype=bf16), "b": torch.empty(columns, dtype=bf16)}
    source = make(
        inputs, [output("o", (rows, columns), bf16)], [rows, columns], [], [Store("o", (i0, i1), value)]
    ).source
    assert "st.global.v4.b32" in _accesses(compile_only(source)["ptx"])
    first, last = source.text.split("    else:\n")
    assert "xmask)" not in first.split("    if tl.program_id(0) <")[1]
    assert last.count("xmask)") == 3


def test_rows_are_read_16_bytes_at_a_time_and_once() -> None:
    source = _softmax(1024, 4000).source
    assert source.text.count("tl.load") == 1
    assert _accesses(compile_only(source)["ptx"]) == {"ld.global.v4.b32", "st.global.v4.b32"}


@pytest.mark.parametrize("columns", [70001, 131072])
def test_the_pass_that_writes_a_long_row_begins_where_the_one_before_ended(columns: int) -> None:
    """A channel of a batch norm is longer than its program's share of the L2 cache, where its end still is."""
    source = _softmax(64, columns).source
    first, second = source.text.split("    for ")[1:]
    assert first.startswith("roffset in range(") and second.startswith("rback in range(")
    loads = [access for access in _accesses(compile_only(source)["ptx"]) if access.startswith("ld")]
    assert loads and all(".v4" in access for access in loads)


@pytest.mark.parametrize("name", ["rows-197-bf16", "rows-197-f32", "rows-50257-bf16"])
def test_rows_that_are_not_aligned_are_read_16_bytes_at_a_time(name: str) -> None:
    accesses = _accesses(compile_only(CASES[name]().source)["ptx"])
    assert "st.global.v4.b32" in accesses
    narrow = {access for access in accesses if access.startswith("ld") and ".v4" not in access}
    assert not narrow, accesses


def test_rows_that_begin_alike_share_their_mask_and_their_weights() -> None:
    """A layer norm of 1001 columns had 40 instructions for each lane, and loaded its weights for each row: an element
    at a time, as many as a thread has of a row."""
    text = CASES["rows-alike-norm"]().source.text
    assert "rlead = (1 * (xfirst % 8) + 0) % 8" in text and "* 8" in text
    assert "tl.load(p1 + r0, rmask)" in text  # weights, without a mask of rows
    source = _layer_norm(2**16, 1001).source
    assert len(re.findall(r"ld\.global\S*\.b16", compile_only(source)["ptx"])) == 1024 // (
        32 * source.settings["num_warps"]
    )
    assert "rlead = rfirst & 7" in CASES["rows-anyhow-norm"]().source.text


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("rows-fixed")])
def test_rows_that_all_begin_at_one_lane_need_no_number_of_the_row(name: str) -> None:
    """A slice of columns, `x[:, 11:].amin(1)`, was a kernel that read a name which nothing had defined."""
    case = CASES[name]()
    assert "rlead = 3\n" in case.source.text and "xfirst" not in case.source.text
    assert compile_only(case.source)["ptx"]


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("rows-alike")])
def test_rows_that_begin_alike_are_all_taken(name: str) -> None:
    """Programs take every row once: as many programs as the rows' period, and so many rows a program further on."""
    case = CASES[name]()
    (tiling,) = choose_tilings(case.plan, replace(target_of("cuda"), units=1))
    x = tiling.axis("x")
    assert x is not None and tiling.begins_alike and x.step > 1
    rows, grid = int(x.size), case.source.settings["grid"]
    taken = [n // x.step * x.step * x.block + n % x.step + x.step * k for n in range(grid) for k in range(x.block)]
    assert sorted(row for row in taken if row < rows) == list(range(rows))
    assert grid < rows / x.block + 2 * x.step


def test_a_row_without_room_for_the_lanes_before_it_is_read_one_by_one() -> None:
    assert "rlane" in CASES["rows-121-bf16"]().source.text
    assert "rlane" not in CASES["rows-122-bf16"]().source.text


def test_buffers_that_may_start_anywhere_have_no_frame() -> None:
    case = CASES["rows-197-bf16"]()
    plan = replace(case.plan, unaligned=frozenset({"a", "o"}))
    assert (
        "rlane"
        not in TritonCodegen().generate(plan, CodegenContext(None, target_of("cuda:0"), case.program, None)).text
    )  # type: ignore[arg-type]


def test_no_row_is_stored_beyond_its_ends() -> None:
    """A store in whole groups holds for lanes of the row alone: its mask is of multiples of the frame's lanes."""
    text = CASES["rows-197-bf16"]().source.text
    assert "rwhole = (rlane >= rhead) & (rlane < rtail)" in text
    assert text.count("tl.store(p1 + ") == 2
    assert "rmask & (rwhole == 0)" in text


def test_half_types_take_cheaper_functions_and_float32_does_not() -> None:
    def gelu(dtype: torch.dtype) -> str:
        x = cast(load("a", (i0,), dtype), f32)
        bell = call("add", call("erf", call("mul", x, const(0.7071, f32))), const(1, f32))
        stores = [Store("o", (i0,), cast(call("mul", x, bell), dtype))]
        case = make({"a": torch.empty(4096, dtype=dtype)}, [output("o", (4096,), dtype)], [4096], [], stores)
        return case.source.text

    assert "_erf_plus_one(" in gelu(bf16)
    assert "tl.erf(" not in gelu(bf16)
    assert "tl.erf(" in gelu(f32)


def test_a_function_that_is_stored_in_float32_too_stays_exact() -> None:
    x = cast(load("a", (i0,), bf16), f32)
    bell = call("add", call("erf", x), const(1, f32))
    stores = [Store("o", (i0,), cast(call("mul", x, bell), bf16)), Store("p", (i0,), bell)]
    outputs = [output("o", (64,), bf16), output("p", (64,), f32)]
    case = make({"a": torch.empty(64, dtype=bf16)}, outputs, [64], [], stores)
    assert "tl.erf(" in case.source.text
    assert "_erf_plus_one" not in case.source.text


def test_columns_are_read_side_by_side() -> None:
    inputs = {"a": torch.empty(4096, 4096)}
    stores = [Store("o", (i0,), reduce("sum", load("a", (r0, i0), f32)))]
    columns = make(inputs, [output("o", (4096,), f32)], [4096], [4096], stores)
    assert "ld.global.v4.b32" in _accesses(compile_only(columns.source)["ptx"])


@pytest.mark.parametrize(("tensors", "rows"), [(1, 256), (2, 64), (6, 32), (14, 16)])
def test_columns_of_many_tensors_fit_in_registers(tensors: int, rows: int) -> None:
    """The gradients of batch norm in channels last: a block of 64 x 256 of each tensor would be kept on the stack."""
    size = (4096, 16384)
    names = [f"a{n}" for n in range(tensors)]
    value = cast(load("a0", (r0, i0), bf16), f32)
    for name in names[1:]:
        value = call("mul", value, cast(load(name, (r0, i0), bf16), f32))
    inputs = {name: torch.empty(size, dtype=bf16) for name in names}
    case = make(inputs, [output("o", (16384,), f32)], (16384,), (4096,), [Store("o", (i0,), reduce("sum", value))])
    assert f"XBLOCK=64 x RBLOCK={rows}, " in case.source.text.splitlines()[0]
    elements = 64 * rows // (32 * case.source.settings["num_warps"])
    assert elements * (tensors + 1) <= 128, "registers of a thread, which can have 255"


def test_columns_that_gather_have_threads_to_wait_with() -> None:
    """8 words of registers an element: 4 elements a thread. With 8 a multiprocessor had 16 warps, which waited for
    indices and then for what those name; 225 us on an H200 for 257 MB."""
    size = (4096, 16384)
    row = bounded(load("rows", (r0,), torch.int64), 64)
    value = load("a0", (r0, i0), f32)
    for n in range(4):
        value = call("mul", value, load(f"t{n}", (placeholder(0), i0), f32, (row,)))
    inputs = {"a0": torch.empty(size), "rows": torch.empty(4096, dtype=torch.int64)}
    inputs |= {f"t{n}": torch.empty(64, 16384) for n in range(4)}
    stores = [Store("o", (i0,), reduce("sum", value))]
    source = make(inputs, [output("o", (16384,), f32)], (16384,), (4096,), stores).source
    assert "XBLOCK=64 x RBLOCK=16, 8 warps" in source.text.splitlines()[0]


def test_sizes_that_are_multiples_of_16_keep_accesses_whole() -> None:
    source = CASES["symbolic"]().source
    assert "ld.global.v4.b32" not in _accesses(compile_only(source, variant=Variant())["ptx"])
    assert "ld.global.v4.b32" in _accesses(compile_only(source, variant=Variant(multiples=True))["ptx"])


def test_pointers_that_may_be_unaligned_are_read_one_by_one() -> None:
    source = _add((1024, 1024), (1024, 1), f32).source
    source = replace(source, settings={**source.settings, "unaligned": [0]})
    assert "ld.global.v4.b32" in _accesses(compile_only(source)["ptx"])
    assert "ld.global.b32" in _accesses(compile_only(source, variant=Variant(aligned=False))["ptx"])


def test_symbolic_sizes_have_a_wide_variant() -> None:
    source = CASES["symbolic"]().source
    assert source.settings["limits"]
    wide = compile_only(source, variant=Variant(wide=True))
    assert ".u64 " in wide["ptx"] or ".s64 " in wide["ptx"]


def test_static_offsets_beyond_32_bits() -> None:
    source = CASES["wide-offsets"]().source
    assert ".to(tl.int64)" in source.text
    assert source.settings["limits"] == []


def test_a_row_beyond_32_bits_is_counted_in_64() -> None:
    loops = re.findall(r"scf\.for .*", compile_only(CASES["wide-row"]().source)["ttir"])
    assert loops
    assert all(line.rstrip(" {").endswith(": i64") for line in loops), loops


def test_masks_are_dropped_where_blocks_fit() -> None:
    assert "mask" not in _add((64, 1024), (1024, 1), f32).source.text
    assert "xmask" in _add((63, 1001), (1001, 1), f32).source.text


def test_equal_loops_have_equal_texts() -> None:
    first = CASES["bias"]()
    program, loop = first.program, first.loop
    names = {"a": "arg5_1", "b": "primals_2", "o": "buf17"}
    buffers = {new: replace(program.buffers[old], name=new) for old, new in names.items()}
    value = call("add", load("arg5_1", (i0, i1), bf16), load("primals_2", (i1,), bf16))
    other = replace(loop, name="fused_3", origins=("add_3",), stores=(Store("buf17", (i0, i1), value),))
    renamed = Program("other", ("arg5_1", "primals_2"), buffers, (other,), ())
    context = CodegenContext(None, target_of("cuda:0"), renamed)  # type: ignore[arg-type]
    source = TritonCodegen().generate(plan_kernel(Kernel("kernel7", other), renamed), context)
    assert (source.text, source.settings) == (first.source.text, first.source.settings)
    assert source.arguments == ("arg5_1", "primals_2", "buf17")


def test_arguments_are_buffers_then_sizes() -> None:
    case = CASES["symbolic"]()
    arguments = case.source.arguments
    assert arguments[:3] == ("a", "b", "o")
    assert {str(item) for item in arguments[3:]} == {"s77", "s12"}


def test_a_row_too_long_for_registers_is_walked_in_blocks() -> None:
    text = CASES["softmax-long"]().source.text
    # The maximum and the sum are found together.
    assert text.count("in range(") == 2
    assert "_softmax_step" in text
    assert text.index("evict_last") < text.index("evict_first")


def test_stores_over_what_is_read_wait_for_the_last_pass() -> None:
    text = CASES["late-store"]().source.text
    assert text.count("for roffset") == 2
    assert text.rindex("tl.load(") < text.index("tl.store(")


def test_mutated_inputs_may_be_unaligned() -> None:
    assert CASES["scatter-rows"]().source.settings["unaligned"] == [2]
    assert CASES["bias"]().source.settings["unaligned"] == []


GOLDEN_BIAS = """\
# add: XBLOCK=64, 2 warps
#   p0: bf16, read
#   p1: bf16, read
#   p2: bf16, written
import triton
import triton.language as tl


@triton.jit
def litz_pointwise_add(p0, p1, p2):
    XBLOCK: tl.constexpr = 64
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    xmask = xindex < 888
    x1 = xindex % 24
    x0 = xindex // 24
    tmp0 = tl.load(p0 + xindex, xmask).to(tl.float32)
    tmp1 = tl.load(p1 + x1, xmask).to(tl.float32)
    tmp2 = tmp0 + tmp1
    tl.store(p2 + xindex, tmp2, xmask)
"""


def test_golden_pointwise() -> None:
    assert CASES["bias"]().source.text == GOLDEN_BIAS


GOLDEN_SOFTMAX = """\
# max + sub + exp + sum + div: XBLOCK=1 x RBLOCK=64, the row in registers, 1 warp
#   p0: bf16, read
#   p1: bf16, written
import triton
import triton.language as tl
from litz.targets.triton.helpers import _exp_near, _maximum, _reciprocal_near


@triton.jit
def litz_reduce_sub_exp_div(p0, p1):
    XBLOCK: tl.constexpr = 1
    RBLOCK: tl.constexpr = 64
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
    x0 = xindex
    rfirst = (50*x0)
    rstart = (rfirst >> 3) * 8
    rlead = rfirst & 7
    rend = ((rlead + 57) >> 3) * 8
    rhead = ((rlead + 7) >> 3) * 8
    rtail = ((rlead + 50) >> 3) * 8
    rlane = tl.arange(0, RBLOCK)[None, :]
    rload = rlane < rend
    rindex = rlane - rlead
    rmask = (rindex >= 0) & (rindex < 50)
    r0 = rindex
    tmp0 = tl.load(p0 + rstart + rlane, rload).to(tl.float32)
    tmp1 = tl.where(rmask, tmp0, (-float("inf")))
    tmp2 = tl.reduce(tmp1, 1, _maximum, keep_dims=True)
    tmp3 = tmp1 - tmp2
    tmp4 = _exp_near(tmp3)
    tmp5 = tl.sum(tmp4, 1, keep_dims=True)
    tmp6 = tmp4 * _reciprocal_near(tmp5)
    tmp7 = tmp6.to(tl.bfloat16).to(tl.float32)
    rwhole = (rlane >= rhead) & (rlane < rtail)
    tl.store(p1 + rstart + rlane, tmp7, rwhole)
    tl.store(p1 + rstart + rlane, tmp7, rmask & (rwhole == 0))
"""


def test_golden_softmax() -> None:
    assert CASES["softmax"]().source.text == GOLDEN_SOFTMAX


def test_source_is_data() -> None:
    """Settings go through JSON: they are kept in a cache and compared across processes."""
    import json

    for name in CASES:
        source: KernelSource = CASES[name]().source
        assert json.loads(json.dumps(source.settings)) == source.settings, name


def _loop_text(value: Node, *more: Store) -> str:
    stores = [Store("o", (i0,), cast(value, bf16)), *more]
    outputs = [output("o", (64,), bf16), *(output(store.buffer, (64,), f32) for store in more)]
    return make({"a": torch.empty(64, dtype=bf16)}, outputs, [64], [], stores).source.text


def test_the_slope_of_a_tanh_is_as_cheap_as_the_tanh() -> None:
    bent = call("tanh", cast(load("a", (i0,), bf16), f32))
    slope = call("sub", const(1, f32), call("mul", bent, bent))
    text = _loop_text(call("mul", call("add", bent, const(1, f32)), slope))
    assert "_tanh_slope(" in text
    assert "_tanh_plus_one(" in text
    assert "libdevice.tanh" not in text
    assert "libdevice.tanh" in _loop_text(slope, Store("p", (i0,), bent))


def test_what_is_made_of_a_half_value_needs_no_more_than_the_half_value() -> None:
    """A float32 result of a value that eager has rounded to a half type; one of the value itself is exact."""
    wide = cast(load("a", (i0,), bf16), f32)
    curved = call("sigmoid", wide)
    assert "_sigmoid_near(" in _loop_text(curved, Store("p", (i0,), cast(cast(curved, bf16), f32)))
    assert "_sigmoid_near(" not in _loop_text(curved, Store("p", (i0,), curved))
    chosen = call("where", call("gt", curved, const(0.5, f32)), wide, const(0, f32))
    assert "_sigmoid_near(" not in _loop_text(chosen)


def test_a_roll_needs_one_remainder() -> None:
    rolled = load("a", (PythonMod(i0 - 1, to_expr(64)),), bf16)
    text = _loop_text(cast(rolled, f32))
    assert "_remainder_int" not in text
    assert "(63 + x0) % 64" in text


def test_short_runs_that_follow_each_other_are_one_axis() -> None:
    """Windows of 7 x 7 of an image: 56 neighbours are read through two ranges, 96 are written."""
    image = Buffer("a", bf16, CUDA, Layout.contiguous((96, 56, 56)), "input")
    y, dy, x, dx, c = (loop_var(n) for n in range(5))
    stores = [Store("o", (y, x, dy, dx, c), load("a", (c, y * 7 + dy, x * 7 + dx), bf16))]
    sizes = [8, 7, 8, 7, 96]
    inputs = {"a": torch.empty(96, 56, 56, dtype=bf16)}
    text = make(inputs, [output("o", (8, 8, 7, 7, 96), bf16)], sizes, [], stores, buffers=[image]).source.text
    assert "YBLOCK" in text.splitlines()[0]
    assert "xindex // 7" in text or "yindex // 7" in text


def test_few_elements_have_a_thread_each() -> None:
    stores = [Store("o", (i0,), load("a", (i0,), bf16))]
    case = make({"a": torch.empty(16384, dtype=bf16)}, [output("o", (16384,), bf16)], [16384], [], stores)
    settings = case.source.settings
    assert settings["grid"] * settings["num_warps"] * 32 == 16384


def test_rows_that_follow_each_other_are_one_run_though_something_goes_by_rows() -> None:
    value = call("add", load("a", (i0, i1), bf16), load("b", (i1,), bf16))
    inputs = {"a": torch.empty(64, 197, dtype=bf16), "b": torch.empty(197, dtype=bf16)}
    text = make(inputs, [output("o", (64, 197), bf16)], [64, 197], [], [Store("o", (i0, i1), value)]).source.text
    assert "tl.load(p0 + xindex" in text
    assert "tl.store(p2 + xindex" in text


def test_values_of_a_long_row_are_loaded_once_a_block() -> None:
    def text(columns: int) -> str:
        x = cast(load("a", (i0, i1), bf16), f32)
        for name in ("b", "c", "d"):
            x = call("mul", x, load(name, (i0,), f32))
        inputs = {"a": torch.empty(8, columns, dtype=bf16), **{n: torch.empty(8) for n in ("b", "c", "d")}}
        stores = [Store("o", (i0, i1), cast(x, bf16))]
        return make(inputs, [output("o", (8, columns), bf16)], [8, columns], [], stores).source.text

    assert "YBLOCK: tl.constexpr = 1" in text(50304)
    assert "YBLOCK" not in text(50257)
    assert "YBLOCK" not in text(256)
