"""Core's passes of the stages "joint" and "partitioned": what a training step's forward saves for its backward.

The passes of stage "joint" change AOTAutograd's joint graph before the partitioner decides what is saved, those of
stage "partitioned" the forward and the backward after that. None may change a value, nor what the user sees.
"""

from __future__ import annotations

from litz.capture.joint.cpu_values import rebuild_cpu_values
from litz.capture.joint.nouns import FXNoun, Halves, JointGraph, TracedGraph
from litz.capture.joint.redundant_copies import remove_redundant_copies
from litz.capture.joint.saved_memory import save_what_is_read
from litz.capture.joint.saved_positions import narrow_positions
from litz.capture.joint.size_readers import read_saved_tensors, read_sizes_alone
from litz_plugins.records import Pass


def default_joint_passes() -> tuple[Pass, ...]:
    """Core's passes of both stages."""
    return (
        Pass("read_sizes_alone", "joint", read_sizes_alone),
        Pass("remove_redundant_copies", "joint", remove_redundant_copies, after=("read_sizes_alone",)),
        Pass("rebuild_cpu_values", "partitioned", rebuild_cpu_values),
        Pass("narrow_positions", "partitioned", narrow_positions, after=("rebuild_cpu_values",)),
        Pass("save_what_is_read", "partitioned", save_what_is_read, after=("narrow_positions",)),
        Pass("read_saved_tensors", "partitioned", read_saved_tensors, after=("save_what_is_read",)),
    )


__all__ = ["FXNoun", "Halves", "JointGraph", "TracedGraph", "default_joint_passes"]
