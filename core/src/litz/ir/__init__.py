"""The IR: buffers and operations as frozen data. Imports nothing of litz's."""

from .attention import Attention, Blocks
from .attention_backward import AttentionBackward
from .buffer import Buffer, Layout, TensorRef
from .node import Node
from .operation import (
    Check,
    Collective,
    Extern,
    KernelCall,
    Loop,
    Operation,
    Range,
    Store,
    Template,
    Unbacked,
    Wait,
)
from .program import Opaque, Program

__all__ = [
    "Attention",
    "AttentionBackward",
    "Blocks",
    "Buffer",
    "Check",
    "Collective",
    "Extern",
    "KernelCall",
    "Layout",
    "Loop",
    "Node",
    "Opaque",
    "Operation",
    "Program",
    "Range",
    "Store",
    "Template",
    "TensorRef",
    "Unbacked",
    "Wait",
]
