"""What was decided and why. In: the nouns of a finished compile. Out: a `CompileReport`, also as JSON.

with collect() as reports:
    torch.compile(model, backend="litz")(x)
reports[0].kernels_after
"""

from . import words
from .collect import Collectors, collect, collectors, publish
from .report import CompileReport
from .step import Step
from .stored import from_data, to_data
from .unread import unread
from .write import write_report_dir

__all__ = [
    "Collectors",
    "CompileReport",
    "Step",
    "collect",
    "collectors",
    "from_data",
    "publish",
    "to_data",
    "unread",
    "words",
    "write_report_dir",
]
