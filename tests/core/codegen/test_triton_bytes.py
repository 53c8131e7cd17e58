"""The assembly that makes half types of bytes, run instruction by instruction in Python, for every byte."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("triton")

import torch

from litz.ir.dtypes import FLOAT8, STORAGE, survives
from litz.targets.triton import build as triton_build
from litz.targets.triton import float8 as triton_float8
from litz.targets.triton.imports import HELPERS, import_lines, imported_helpers, lines_for
from litz_contractions.module import DEVICE_FUNCTIONS
from litz_contractions.products import bytes as triton_bytes
from support.float8 import every_byte

BYTES = torch.arange(256)
SIGNED = torch.arange(256).to(torch.uint8).view(torch.int8).to(torch.int64)


def lanes(word: int, dtype: torch.dtype) -> torch.Tensor:
    """The two halves of a register."""
    halves = torch.tensor([word & 0xFFFF, word >> 16], dtype=torch.int32).to(torch.uint16)
    return halves.view(dtype).double()


def word(values: torch.Tensor, dtype: torch.dtype) -> int:
    low, high = values.to(dtype).view(torch.int16).tolist()
    return (low & 0xFFFF) | (high & 0xFFFF) << 16


def permuted(a: int, selector: int) -> int:
    """prmt of a register and 0: the digits of the selector say which byte goes where; from 8 on, whose sign."""
    source = a.to_bytes(4, "little") + bytes(4)
    source += bytes(255 * (byte >> 7) for byte in source)
    return int.from_bytes(bytes(source[(selector >> 4 * n) & 15] for n in range(4)), "little")


def looked_up(a: int, b: int, c: int, table: int) -> int:
    """lop3: each bit by the table of all functions of three."""
    return sum(((table >> ((a >> n & 1) * 4 + (b >> n & 1) * 2 + (c >> n & 1))) & 1) << n for n in range(32))


def run(code: str, given: int, results: int) -> list[int]:
    """The registers that a piece of assembly fills, of the one that it reads."""
    registers = {f"${results}": given}
    floats: dict[str, torch.Tensor] = {}

    def value(text: str) -> int:
        return registers[text] if text in registers else int(text, 0)

    for line in code.splitlines():
        match = re.fullmatch(r"([\w.]+) (.*);", line.strip())
        if match is None or match[1] == ".reg":
            continue
        kind = match[1]
        if kind == "mov.b32" and match[2].startswith("{"):
            parts, source = match[2].removeprefix("{").split("}, ")
            registers.update(zip(parts.split(", "), (value(source) & 0xFFFF, value(source) >> 16), strict=True))
            continue
        to, *texts = match[2].split(", ")
        if kind == "cvt.f32.f16":
            floats[to] = lanes(value(texts[0]), torch.float16)[0]
            continue
        if kind == "cvt.rn.bf16x2.f32":
            registers[to] = word(torch.stack([floats[text] for text in reversed(texts)]), torch.bfloat16)
            continue
        values = [value(text) for text in texts]
        dtype = torch.bfloat16 if "bf16" in kind else torch.float16
        if kind == "mov.b32":
            found = values[0]
        elif kind == "prmt.b32":
            found = permuted(values[0], values[2])
        elif kind == "lop3.b32":
            found = looked_up(*values)
        elif kind == "and.b32":
            found = values[0] & values[1]
        elif kind == "add.u32":
            found = values[0] + values[1] & 0xFFFFFFFF
        elif kind == "shl.b32":
            found = values[0] << values[1] & 0xFFFFFFFF
        elif kind == "shr.u32":
            found = values[0] >> values[1]
        elif kind == "mul.lo.u32":
            found = values[0] * values[1] & 0xFFFFFFFF
        elif kind.startswith("fma.rn."):
            a, b, c = (lanes(each, dtype) for each in values)
            found = word(a * b + c, dtype)
        else:
            assert kind == "sub.rn.f16x2", kind
            found = word(lanes(values[0], dtype) - lanes(values[1], dtype), dtype)
        registers[to] = found
    return [registers[f"${n}"] for n in range(results)]


def converted(code: str, dtype: torch.dtype, results: int = 1) -> Sequence[torch.Tensor]:
    """What becomes of each byte, by result."""
    found: list[list[float]] = [[] for _ in range(results)]
    for first in range(0, 256, 4):
        registers = run(code, int.from_bytes(bytes(range(first, first + 4)), "little"), 2 * results)
        for number in range(results):
            for register in registers[2 * number : 2 * number + 2]:
                found[number] += lanes(register, dtype).tolist()
    return [torch.tensor(values, dtype=torch.float64) for values in found]


@pytest.mark.parametrize(("name", "dtype", "unit"), [("bf16", torch.bfloat16, 128), ("f16", torch.float16, 1024)])
def test_every_byte(name: str, dtype: torch.dtype, unit: int) -> None:
    low, high = converted(triton_bytes._CODES["nibbles", name, False], dtype, 2)
    assert torch.equal(low, (unit + BYTES % 16).double()) and torch.equal(high, (unit + BYTES // 16).double())
    (signed,) = converted(triton_bytes._CODES["signed", name, False], dtype)
    assert torch.equal(signed, SIGNED.double())
    (unsigned,) = converted(triton_bytes._CODES["unsigned", name, False], dtype)
    assert torch.equal(unsigned, BYTES.double())


def of_words(code: str, dtype: torch.dtype, results: int) -> Sequence[torch.Tensor]:
    """What becomes of words whose low byte is each byte in turn, and whose high byte is that byte turned round."""
    found: list[list[float]] = [[] for _ in range(results)]
    for first in range(0, 256, 2):
        given = bytes([first, 255 - first, first + 1, 254 - first])
        for number, register in enumerate(run(code, int.from_bytes(given, "little"), results)):
            found[number] += lanes(register, dtype).tolist()
    return [torch.tensor(values, dtype=torch.float64) for values in found]


@pytest.mark.parametrize(("name", "dtype", "unit"), [("bf16", torch.bfloat16, 128), ("f16", torch.float16, 1024)])
def test_every_byte_of_words(name: str, dtype: torch.dtype, unit: int) -> None:
    high = BYTES.flip(0)
    nibbles = of_words(triton_bytes._CODES["nibbles", name, True], dtype, 4)
    for got, wanted in zip(nibbles, (BYTES % 16, BYTES // 16, high % 16, high // 16), strict=True):
        assert torch.equal(got, (unit + wanted).double())
    signed = of_words(triton_bytes._CODES["signed", name, True], dtype, 2)
    assert torch.equal(signed[0], SIGNED.double()) and torch.equal(signed[1], SIGNED.flip(0).double())
    unsigned = of_words(triton_bytes._CODES["unsigned", name, True], dtype, 2)
    assert torch.equal(unsigned[0], BYTES.double()) and torch.equal(unsigned[1], high.double())


CODES = [
    (dtype, half)
    for dtype in sorted(FLOAT8, key=str)
    for half in (torch.bfloat16, torch.float16)
    if STORAGE[dtype].bits is not None and (dtype, half) != (torch.float8_e5m2fnuz, torch.float16)  # via bfloat16
]


@pytest.mark.parametrize(("dtype", "half"), CODES, ids=str)
def test_every_byte_of_float8(dtype: torch.dtype, half: torch.dtype) -> None:
    """As torch converts them, with the signs of zeros; every byte beside others, whose bits stay where they are."""
    assert survives(dtype, half)
    name = STORAGE[dtype].name, "bf16" if half == torch.bfloat16 else "f16"
    wanted = every_byte(dtype).double()
    (found,) = converted(triton_float8._CODES[*name, False], half)
    low, high = of_words(triton_float8._CODES[*name, True], half, 2)
    for got, right in ((found, wanted), (low, wanted), (high, wanted.flip(0))):
        torch.testing.assert_close(got, right, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(got.signbit() & ~got.isnan(), right.signbit() & ~right.isnan())


def test_functions_of_a_plugin_are_imported_from_there_and_part_of_the_key() -> None:
    lines = import_lines("_half_integer(_div(a, b))", DEVICE_FUNCTIONS)
    text = "\n".join([*lines, ""])
    home = "litz_contractions.products.bytes"
    assert imported_helpers(text) == {HELPERS: ["_div"], home: ["_half_integer"]}
    assert lines_for(imported_helpers(text)) == lines
    assert all(hasattr(triton_bytes, name) for name in DEVICE_FUNCTIONS)
    assert triton_build._text_of(home) == Path(triton_bytes.__file__).read_text()
    assert triton_build._text_of("nobody_has_this.module") == ""
