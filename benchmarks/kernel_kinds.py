"""What a kernel does, told from its name: in, a name as the profiler has it; out, one of `KINDS`.

Names are those of torch's own kernels, of the libraries (cuBLAS, cuDNN, CUTLASS, flash attention), of Inductor's
(`triton_poi_fused_add_mul_3`) and of litz's (`litz_reduce_sum`). On a CPU names are those of operators.
"""

from __future__ import annotations

import re
from functools import lru_cache

_PATTERNS: tuple[tuple[str, str], ...] = (
    # The first that is found counts. Compilers' own first: their names hold those of all that they fused.
    ("attention", r"^litz_attention|^triton_tem\w*attention"),
    ("convolution", r"^triton_tem\w*convolution"),
    ("product", r"^litz_gemm|^triton_tem"),
    ("reduction", r"^litz_(reduce|row)|^triton_(per|red)|^cpp_fused\w*(sum|mean|softmax|norm)"),
    ("scatter", r"^litz_scatter|^triton_poi\w*(scatter|index_put|index_add)"),
    ("pointwise", r"^litz_|^triton_|^cpp_fused"),
    ("copy", r"^mem(cpy|set)|^aten::(copy_|_to_copy|clone|zero_|fill_)$"),
    ("attention", r"flash|fmha|scaled_dot_product|native_sdpa|mha_"),
    ("layout", r"nchwTo|nhwcTo|ToNhwc|ToNchw|convertTensor|im2col|col2im|tensorTransform"),
    ("helper", r"splitK_?reduce|reduce_?splitK|cublasLt.*reduce|scalePackedTensor|computeOffsets"),
    ("convolution", r"conv(?!ert)|fprop|dgrad|wgrad|winograd|depthwise|implicit_gemm|^aten::mkldnn"),
    ("norm", r"batch_?norm|bn_(fw|bw)|layer_?norm|group_?norm|RowwiseMoments|GammaBeta"),
    ("product", r"gemm|gemv|nvjet|cutlass|cublas|matmul|dot_kernel|::(mm|addmm|bmm|baddbmm|linear)$|grouped_mm"),
    ("sort", r"sort|topk|scan|cub::|bitonic|histogram|unique|cumsum"),
    ("scatter", r"scatter|index_add|embedding_(dense_)?backward|indexFunc|index_put|EmbeddingBag"),
    ("reduction", r"reduce_kernel|softmax"),
    ("pointwise", r"elementwise|vectorized|CatArray|gather|index|embedding|foreach|pool|upsample|fill"),
)
_COMPILED = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _PATTERNS)
KINDS = (*dict.fromkeys(kind for kind, _ in _PATTERNS), "other")
"""helper: what a library launches around a product. norm: a library's normalization; reduction: everyone else's."""
ANCHORS = ("product", "convolution", "attention")
"""Contractions: every backend has them in much the same order, whatever it fuses around them."""


@lru_cache(maxsize=4096)
def kind_of(name: str) -> str:
    """The kind of a kernel; "other" where its name says nothing."""
    return next((kind for kind, pattern in _COMPILED if pattern.search(name)), "other")


def short(name: str, width: int) -> str:
    """A name without its template's arguments and namespaces, in so many columns."""
    if name.startswith(("litz_", "triton_")):
        return name if len(name) <= width else name[: width - 1] + "…"
    name = re.sub(r"\(anonymous namespace\)::|at::native::|at::cuda::|^void\s+", "", name)
    head, _, arguments = name.partition("<")
    head = head.partition("(")[0].strip()
    inner = _INNER.search(arguments) if _GENERAL.search(head) else None
    name = f"{head} {next(filter(None, inner.groups()))}" if inner else head
    return name if len(name) <= width else name[: width - 1] + "…"


_GENERAL = re.compile(r"elementwise|reduce_kernel|Kernel2?$")
"""Names of kernels whose template's arguments say what they do."""
_INNER = re.compile(r"\w*?Functor_(\w+)|(\w+?)(?:Functor|Ops\b|_kernel_cuda|_kernel_impl|_kernel\b)|cutlass_(\w+)")
