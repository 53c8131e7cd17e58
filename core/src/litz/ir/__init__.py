"""The IR: buffers and operations as frozen data. Imports nothing of litz's."""

from litz.regions import Region

from .buffer import Buffer, Layout, TensorRef
from .node import Node
from .operation import (
    Check,
    Collective,
    Contraction,
    Extern,
    KernelCall,
    Loop,
    Operation,
    Part,
    Range,
    Store,
    Template,
    Unbacked,
    Wait,
)
from .program import Opaque, Program

__all__ = [
    "Buffer",
    "Check",
    "Collective",
    "Contraction",
    "Extern",
    "KernelCall",
    "Layout",
    "Loop",
    "Node",
    "Opaque",
    "Operation",
    "Part",
    "Program",
    "Range",
    "Region",
    "Store",
    "Template",
    "TensorRef",
    "Unbacked",
    "Wait",
]
