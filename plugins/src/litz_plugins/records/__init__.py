"""The data that plugins return and are handed: frozen records, no behaviour beyond checks of their own fields.

Times are microseconds, sizes bytes, unless a name says otherwise.
"""

from litz_plugins.records.caching import Uncacheable
from litz_plugins.records.choices import Choice, ChoiceContext, TemplateSpec
from litz_plugins.records.codegen import (
    COUNTERS,
    Codegen,
    CodegenContext,
    JoiningCodegen,
    KernelSource,
    PreparingCodegen,
    SafeForms,
    TargetSpec,
    TunableCodegen,
    Verdict,
)
from litz_plugins.records.decisions import Ask, Decision, Estimate
from litz_plugins.records.entries import Entry, EntryFacts
from litz_plugins.records.exporters import Exporter, Saver
from litz_plugins.records.function import Function
from litz_plugins.records.layouts import Conversion, LayoutNeed, LayoutPlan
from litz_plugins.records.options import OptionSpec
from litz_plugins.records.passes import STAGES, Pass, PassContext, Stage
from litz_plugins.records.secret import Secret
from litz_plugins.records.targets import SHARES, Figures, Share, Target, TargetOf, unknown_target
from litz_plugins.records.watching import Watcher

__all__ = [
    "COUNTERS",
    "SHARES",
    "STAGES",
    "Ask",
    "Choice",
    "ChoiceContext",
    "Codegen",
    "CodegenContext",
    "Conversion",
    "Decision",
    "Entry",
    "EntryFacts",
    "Estimate",
    "Exporter",
    "Figures",
    "Function",
    "JoiningCodegen",
    "KernelSource",
    "LayoutNeed",
    "LayoutPlan",
    "OptionSpec",
    "Pass",
    "PassContext",
    "PreparingCodegen",
    "SafeForms",
    "Saver",
    "Secret",
    "Share",
    "Stage",
    "Target",
    "TargetOf",
    "TargetSpec",
    "TemplateSpec",
    "TunableCodegen",
    "Uncacheable",
    "Verdict",
    "Watcher",
    "unknown_target",
]
