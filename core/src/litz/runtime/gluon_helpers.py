"""What generated kernels in Gluon import: the language, Hopper's instructions, and the helpers of Triton's kernels.

Gluon is Triton with layouts, shared memory and waits written out. Under TRITON_INTERPRET=1 there is no Gluon; a
stand-in then runs the same text in Triton's interpreter, where layouts mean nothing and everything is done when it is
asked for. So what a kernel computes is tested there; whether it waits for what it uses is not.
"""

# The functions below are Triton's language, not Python: a type hint would mean something else there.
import triton
import triton.language as triton_language  # the interpreter wants it visible

from litz.runtime import triton_helpers

if triton.knobs.runtime.interpret:
    from litz.runtime.gluon_interpret import (
        async_copy,
        fence_async_shared,
        gluon,
        tl,
        warpgroup_mma,
        warpgroup_mma_wait,
    )
else:
    from triton.experimental import gluon  # type: ignore[no-redef]
    from triton.experimental.gluon import language as tl  # type: ignore[no-redef]
    from triton.experimental.gluon.language.nvidia.ampere import async_copy  # type: ignore[no-redef]
    from triton.experimental.gluon.language.nvidia.hopper import (  # type: ignore[no-redef]
        fence_async_shared,
        warpgroup_mma,
        warpgroup_mma_wait,
    )

KNOWN = ("_exact_float", "_exp2_flushed", "_maximum", "_minimum", "_tanh_near")
"""The helpers of Triton's kernels that a kernel in Gluon may call: those without shapes of their own."""
_exact_float, _exp2_flushed, _maximum, _minimum, _tanh_near = (
    gluon.jit(getattr(triton_helpers, name).fn) for name in KNOWN
)

if triton.knobs.runtime.interpret:

    @gluon.jit
    def _kept(a):
        return a

    @gluon.jit
    def _never(a):
        return a

else:

    @gluon.jit
    def _kept(a):
        # Computed here, wherever it is used.
        return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=f,f", [a], tl.float32, False, 1)

    @gluon.jit
    def _never(a):
        # In a branch that is never taken. ptxas moves a wait for the tensor cores to before the arithmetic that was to
        # be done meanwhile, but not across a jump.
        return tl.inline_asm_elementwise("trap; mov.b32 $0, $1;", "=f,f", [a], tl.float32, False, 1)


__all__ = [
    "KNOWN",
    "async_copy",
    "fence_async_shared",
    "gluon",
    "tl",
    "triton_language",
    "warpgroup_mma",
    "warpgroup_mma_wait",
]
