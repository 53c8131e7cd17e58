"""The conformance kit for plugins: in, a plugin; out, what it registers run against eager, as a `Conformance`.

`litz_plugins.testing.check_conformance` is the way in. What is tried:

- each lowering and decomposition: on samples of the op made from its schema, of several shapes, strides and dtypes;
- each pass, layout plan and cost hook: on a set of small programs;
- each template's offers: every choice is forced once for each contraction that it is offered for.

Ways to run: "interpreted" (the finished schedule by the IR's interpreter, with static and with dynamic sizes), "built"
(kernels, with the option `debug`) and "kept" (put into the graph cache and fetched from there).
"""

from .kit import check_conformance
from .records import Conformance, ConformanceError, Trial

__all__ = ["Conformance", "ConformanceError", "Trial", "check_conformance"]
