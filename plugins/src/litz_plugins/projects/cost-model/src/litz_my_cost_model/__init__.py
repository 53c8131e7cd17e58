"""A plugin of litz: what library calls take on a CPU, by a table of measurements.

`python -m litz_my_cost_model.measure` makes the table of another machine.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

from litz_plugins import Estimate, OptionSpec, hookimpl

SPREAD = 2.0
"""The truth lies within this factor: runs of one call differ by so much on a busy machine."""
OWN_TABLE = Path(__file__).parent / "measured.json"


@hookimpl
def litz_register_options():
    """Registers the option `table`: options={"my_cost_model.table": path}, or LITZ_MY_COST_MODEL_TABLE."""
    return [OptionSpec("table", Path, OWN_TABLE, "a file that `python -m litz_my_cost_model.measure` wrote")]


@hookimpl
def litz_estimate_runtime(operation, target, program, options):
    """Returns the time of a call that is in the table; None for everything else, which core's roofline estimates."""
    if target.type != "cpu" or not hasattr(operation, "target_name"):  # a Loop calls no library
        return None
    path = OWN_TABLE if options is None else options["my_cost_model.table"]
    row = read_table(path)["calls"].get(operation.target_name)
    if row is None:
        return None
    # Symbolic sizes count by their likely values.
    elements = max((program.hint(ref.layout.numel) for ref in operation.refs), default=0)
    us = row["fixed_us"] + row["ns_per_element"] * elements / 1000
    return Estimate(us, us / SPREAD, us * SPREAD, f"measured: {elements} elements of {operation.target_name}")


@hookimpl
def litz_cache_fingerprint(options):
    """Returns the text of a user's table; '' for the plugin's own, as its files are in every key of the graph cache."""
    path = options["my_cost_model.table"]
    return "" if path == OWN_TABLE else path.read_text(encoding="utf-8")


@functools.cache
def read_table(path):
    """Returns a file's table: {"machine": text, "calls": {op: {"fixed_us": number, "ns_per_element": number}}}."""
    return json.loads(path.read_text(encoding="utf-8"))
