"""What device functions ask about the device that they are compiled for, while they are compiled."""

# The functions below are of Triton's language, not Python: a type hint would mean something else there.
import triton.language as tl


@tl.core.builtin
def without_ptx(_semantic=None):
    """Returns whether the device that is compiled for lacks PTX, the assembly of NVIDIA's devices."""
    return tl.constexpr(_semantic.builder.options.backend_name != "cuda")


@tl.core.builtin
def one_by_one(byte, _semantic=None):
    """Returns whether bytes are taken one by one. Assembly takes four at a time, where there are as many."""
    return tl.constexpr(_semantic.builder.options.backend_name != "cuda" or byte.numel.value % 4 != 0)
