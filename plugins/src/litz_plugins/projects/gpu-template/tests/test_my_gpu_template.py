"""Without a GPU: the kernel's values in Triton's interpreter, in a process of its own, and the PTX for an H100."""

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import litz_my_gpu_template
from litz import report
from litz.backend import backend_with
from litz.ir import KernelCall
from litz_plugins.testing import check_plugin

pytest.importorskip("triton")
programs = pytest.importorskip("litz_testing.gpu_programs")


def product(a, b):
    return a @ b


def with_silu(a, b):
    return F.silu(a @ b)


def with_relu(a, b):
    return F.relu(a @ b)


def silu_and_product(a, b):
    made = a @ b
    return F.silu(made), made


def matrices(n=70, k=100, m=5, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator).to(dtype) for shape in ((n, k), (k, m))]


def transposed():
    """Returns matrices of [70, 100] and [100, 7] whose columns are contiguous."""
    a, b = matrices(100, 70, 100)
    return [a.t(), b[:7].t()]


def made(f, tensors, dynamic=()):
    """Returns the program for a GPU. dynamic: the sizes that are symbols, as (tensor, dimension)."""
    return programs.gpu_program(f, tensors, dynamic=dynamic, my_gpu_template=litz_my_gpu_template)


def kernels(program):
    return [each for each in program.operations if isinstance(each, KernelCall)]


def test_plugin_is_well_formed():
    found = check_plugin(litz_my_gpu_template, name="my_gpu_template")
    assert found.templates == ("my_gpu_template_thin",)


@pytest.mark.parametrize(("f", "loops"), [(product, 0), (with_silu, 0), (with_relu, 1), (silu_and_product, 1)])
def test_the_kernel_takes_silu_along_and_nothing_else(f, loops):
    program = made(f, matrices(4096, 1024, 8, torch.bfloat16))
    assert len(kernels(program)) == 1 and len(program.loops) == loops


def test_wide_products_stay_with_the_library():
    assert kernels(made(product, matrices(4096, 1024, 17, torch.bfloat16))) == []


@pytest.mark.parametrize("dynamic", [(), [(0, 0)]])
def test_it_compiles_for_a_gpu(dynamic):
    program = made(with_silu, matrices(4096, 1024, 8, torch.bfloat16), dynamic=dynamic)
    (ptx,) = programs.compile_program(program).values()
    assert "mma" in ptx


def test_values_are_right():
    variables = ["TRITON_INTERPRET=1", f"PYTHONPATH={os.pathsep.join(sys.path)}"]
    done = subprocess.run(["env", *variables, sys.executable, __file__], capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("f", [product, with_silu, with_relu, silu_and_product])
def test_on_a_gpu(f):
    a, b = (each.cuda() for each in matrices(4096, 1024, 8, torch.bfloat16))
    torch._dynamo.reset()
    with report.collect() as reports:
        results = torch.compile(f, backend=backend_with(my_gpu_template=litz_my_gpu_template))(a, b)
    torch.testing.assert_close(results, f(a, b))
    assert reports[0].contractions[0].chosen.name.startswith("thin product")


CASES = [
    (product, matrices(), []),
    (with_silu, matrices(), [(0, 0)]),
    (silu_and_product, matrices(dtype=torch.float16), []),
    (with_silu, transposed(), []),
    (product, transposed(), [(0, 0)]),
    (with_silu, matrices(1, 3, 1), []),
]

if __name__ == "__main__":  # in Triton's interpreter, which multiplies no bfloat16
    for f, tensors, dynamic in CASES:
        program = made(f, tensors, dynamic)
        assert kernels(program)
        exact = f(*(each.double() for each in tensors))
        exact = exact if isinstance(exact, tuple) else (exact,)
        for got, wanted in zip(programs.interpret_program(program, tensors), exact, strict=True):
            torch.testing.assert_close(got.double(), wanted, rtol=2e-3, atol=2e-3)
