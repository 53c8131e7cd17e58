"""What other dists may use of this one: attention as data, offers for contractions, and parts of programs as programs
of their own.

litz-autotune measures these offers against each other. All else in this dist may change from version to version.
"""

from .attention.operation import Attention, AttentionBackward, Blocks
from .epilogue import others, shared_users
from .products.convolution import offer_depthwise
from .products.gemm import OPERANDS
from .products.library import offer_library
from .products.offer import KINDS, Offer, offer_gemm
from .products.rows import offer_rows
from .subprogram import cut, on_device

__all__ = [
    "KINDS",
    "OPERANDS",
    "Attention",
    "AttentionBackward",
    "Blocks",
    "Offer",
    "cut",
    "offer_depthwise",
    "offer_gemm",
    "offer_library",
    "offer_rows",
    "on_device",
    "others",
    "shared_users",
]
