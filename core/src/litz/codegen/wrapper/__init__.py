"""The wrapper: the Python module that runs a plan, step by step.

In: an ExecutionPlan and the source of each of its kernels. Out: `WrapperSource`, the module's text and the objects that
its text names but cannot spell (op targets without a path, graph modules, constants). The text allocates, launches,
frees:

    def call(args):
        arg0_1, arg1_1, = args
        args.clear()
        buf0 = _empty((8, 768), (768, 1), torch.float32, _cuda_0)
        kernel0(buf0.data_ptr(), arg0_1.data_ptr())  # add + gelu
        buf1 = aten_mm_default(buf0, arg1_1)
        del buf0
        return (buf1,)

A plan that has cases gets a function for each that is different, and a `call` that chooses (`dispatch`). What is done
and in which order is in the plan; the files here say how it is spelled. Whose model it is comes last (`said`,
`litz.origins.words`).
"""

from litz.origins.named import NOBODYS, Named
from litz.origins.places import Words, WrapperSource
from litz.origins.words import annotated

from .module import generate_wrapper
from .said import named_of, words_of

__all__ = ["NOBODYS", "Named", "Words", "WrapperSource", "annotated", "generate_wrapper", "named_of", "words_of"]
