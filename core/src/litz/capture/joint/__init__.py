"""What the stages "joint" and "partitioned" work on, and how their passes are checked.

The passes of stage "joint" change AOTAutograd's joint graph before the partitioner decides what is saved, those of
stage "partitioned" the forward and the backward after that. None may change a value, nor what the user sees. Core has
no pass of these stages: litz-passes has some.
"""

from __future__ import annotations

from litz.capture.joint.nouns import FXNoun, Halves, JointGraph, TracedGraph

__all__ = ["FXNoun", "Halves", "JointGraph", "TracedGraph"]
