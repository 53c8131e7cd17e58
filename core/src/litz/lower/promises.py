"""Promises: what a program claims of sizes and scalars that depend on data, made Checks where the sizes are found out.

A size that torch has decided to be 4 reads 4 in every later size, stride and index, so the claim has to be checked
before anything is done by it. In: each symbol that an Extern binds, and the conditions that the ShapeEnv keeps. Out:
the Checks, as soon as all of their symbols are known, in torch's order: the conditions that were asserted, then the
equalities that sizes were replaced by, then the ranges that were derived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import sympy
import torch

from litz.capture import torch_api
from litz.capture.graph import Graph
from litz.errors import LoweringError
from litz.ir import Unbacked

from .conditions import is_of_floats

HUGE = 2**62
"""Ends of ranges that are as good as none."""

Emit = Callable[..., None]


class Promises:
    """The conditions of a graph that no Check stands for yet.

    emit: appends a Check of (condition, message, symbols to show, error to raise) to the program; without the error it
    is a RuntimeError.
    """

    def __init__(self, graph: Graph, emit: Emit) -> None:
        self.emit = emit
        self.shape_env = graph.shape_env
        self.known: set[sympy.Symbol] = set()
        self.checked: set[Any] = set()
        self.places: dict[sympy.Symbol, str] = {}
        self.messages: dict[Any, str] = {}
        self.pending: list[Any] = []
        self.of_data = False
        """True if there is a size or a scalar that only a run tells."""
        if self.shape_env is None:
            return
        self.of_data = any(torch_api.is_data_dependent(self.shape_env, s) for s in self.shape_env.var_to_range)
        unclaimed = set(map(self._key, graph.unclaimed))
        asserted = torch_api.runtime_asserts(self.shape_env)
        said = (torch_api.asserted(node) for node in graph.nodes)
        of_graph = [(torch_api.traced_expr(self.shape_env, item[0]), item[1]) for item in said if item]
        # What the graph asserts of floats is checked there: torch's form takes `not (a > 1)` for `a <= 1`.
        unclaimed.update(self._key(condition) for condition, _ in of_graph if is_of_floats(condition))
        self.pending = [condition for condition in asserted if torch_api.same_condition(condition) not in unclaimed]
        for condition, message in (*graph.messages, *(item for item in of_graph if item[1])):
            self.messages.setdefault(self._key(condition), message)

    def _key(self, condition: Any) -> Any:
        """Returns the key that all forms of a condition have in common, whenever it was traced."""
        return torch_api.same_condition(torch_api.first_names(self.shape_env, condition))

    def symbol_for(self, symbol: sympy.Symbol, node: torch.fx.Node, path: tuple[Any, ...]) -> sympy.Symbol:
        """Returns the symbol to use for the value that `node` binds to `symbol`, found at `path` of the node's result
        (see `ir.Unbacked`)."""
        symbol = torch_api.first_names(self.shape_env, symbol)
        equal = torch_api.replaced(self.shape_env, symbol)
        if equal.is_Symbol and equal not in self.known:
            symbol = equal
        elif symbol in self.known:  # found out for the second time
            first, number = symbol, 1
            while symbol in self.known:
                symbol, number = type(first)(f"{first}_{number}", **first.assumptions0), number + 1
            self.pending.append(sympy.Eq(symbol, first, evaluate=False))
        self.places[symbol] = _place(node, path)
        return symbol

    def taken_for_known(self, node: torch.fx.Node, steps: Callable[[Any], tuple[Any, ...]]) -> tuple[Unbacked, ...]:
        """Returns the sizes that `node` determines though tracing has taken them for a number: each has to be that
        number. steps: of a key path."""
        found = []
        for symbol, (keypath, number) in torch_api.sizes_taken_for_known(node).items():
            found.append(Unbacked(symbol, steps(keypath)))
            self.places[symbol] = _place(node, found[-1].path)
            self.pending.append(sympy.Eq(symbol, number, evaluate=False))
        return tuple(found)

    def given(self, symbols: Iterable[sympy.Symbol]) -> None:
        """Takes note of the size symbols that the inputs determine."""
        self.known.update(symbols)

    def found_out(self, items: Iterable[Unbacked]) -> None:
        """Takes note of the sizes that an Extern has bound, and checks what torch has taken for granted of them."""
        fresh = [item for item in items if item.symbol not in self.known]
        self.known.update(item.symbol for item in fresh)
        if self.shape_env is None:
            return
        for item in fresh:
            equal = torch_api.replaced(self.shape_env, item.symbol)
            if equal != item.symbol:
                self.pending.append(sympy.Eq(item.symbol, equal, evaluate=False))
        self.check_known()
        for item in fresh:
            last = item.path[-1] if item.path else ()
            self._check_range(item.symbol, is_size=isinstance(last, tuple) and last[:1] == ("size",))

    def check_known(self) -> None:
        """Adds a Check for every pending condition whose symbols are known by now."""
        waiting = []
        for condition in self.pending:
            known = self._in_known(condition)
            if known is None:
                waiting.append(condition)
            else:
                self.check(known)
        self.pending = waiting

    def check(self, condition: Any, message: str = "") -> None:
        """Adds a Check of a condition, unless there is one or the condition is true. Errors: LoweringError for a
        condition with symbols that nothing determines."""
        known = self._in_known(condition)
        if known is None:
            raise LoweringError("_assert_scalar", str(condition), "no operation determines the sizes in it")
        key = torch_api.same_condition(known)
        if known is sympy.true or key in self.checked:
            return
        self.checked.add(key)
        message = self.messages.get(key, "") or message
        if message:
            self.emit(known, message, ())
            return
        symbols = tuple(sorted(known.free_symbols, key=str))
        places = " and ".join(f"{symbol} is {self.places[symbol]}" for symbol in symbols if symbol in self.places)
        self.emit(known, f"Runtime assertion failed: {known}" + (f", where {places}" if places else ""), symbols)

    def assert_true(self, condition: Any, message: str, of_floats: Any = None) -> None:
        """Adds a Check of what the graph asserts, unless the ranges of the sizes, which are checked already, imply
        it. of_floats: the condition in a form that is right for every float."""
        if of_floats is not None:
            self.check(of_floats, self.messages.get(self._key(condition), message))
        elif self.shape_env is None or not torch_api.implied_by_ranges(self.shape_env, condition):
            self.check(condition, message)

    def require(self, condition: Any, message: str, error: type[Exception]) -> None:
        """Check what eager checks of an op's operands, where only a run tells: tracing has decided or guarded all else,
        and torch asserts some of it. The error is eager's, and tells the sizes after the message."""
        if not any(torch_api.is_data_dependent(self.shape_env, symbol) for symbol in condition.free_symbols):
            return
        if self.shape_env is None or torch_api.implied_by_ranges(self.shape_env, condition):
            return
        known = self._in_known(condition)
        if known is None:
            # Eager checks it.
            raise NotImplementedError(f"{condition} cannot be checked: no operation determines its sizes")
        key = torch_api.same_condition(known)
        if key not in self.checked:
            self.checked.add(key)
            self.emit(known, message, tuple(sorted(known.free_symbols, key=str)), error)

    def _in_known(self, condition: Any) -> Any | None:
        """The condition over symbols that are known, None if there is no such form yet."""
        unknown = condition.free_symbols - self.known
        if unknown:
            condition = condition.xreplace({s: torch_api.replaced(self.shape_env, s) for s in unknown})
        return None if condition.free_symbols - self.known else condition

    def _check_range(self, symbol: sympy.Symbol, is_size: bool) -> None:
        low, high = torch_api.value_ranges(self.shape_env).get(symbol, (-sympy.oo, sympy.oo))
        if torch_api.replaced(self.shape_env, symbol) != symbol:
            return  # its range is that of what it equals
        ends = f"between {low} and {high}" if high < HUGE else f"at least {low}"
        message = f"Invalid value range: {self.places.get(symbol, symbol)} must be {ends}"
        for condition, matters in (
            (sympy.Ge(symbol, low, evaluate=False), low > (0 if is_size else -HUGE)),
            (sympy.Le(symbol, high, evaluate=False), high < HUGE),
        ):
            key = torch_api.same_condition(condition) if matters else None
            if matters and key not in self.checked:
                self.checked.add(key)
                said = self.messages.get(key, "")
                self.emit(condition, said or message, () if said else (symbol,))


def _place(node: torch.fx.Node, path: tuple[Any, ...]) -> str:
    """Returns where a value was found, in words."""
    last: Any = path[-1] if path and isinstance(path[-1], tuple) else ()
    number = next((f"result {step} of " for step in path if isinstance(step, int)), "")
    kind = f"{last[0]} {last[1]} of " if last[:1] in (("size",), ("stride",)) else ""
    return f"{kind}{number}{node.name}" if kind or number else f"the value of {node.name}"
