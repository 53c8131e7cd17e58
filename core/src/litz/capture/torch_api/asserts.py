"""What a program promises about sizes that depend on data, and where torch keeps that.

`torch._check(z.size(0) == 4)` ends in three places of a ShapeEnv: as a runtime assert in the words of the symbol that
the size had first, as a replacement of that symbol (from then on the size reads 4), and as its range. AOTAutograd
traces a graph again, each time with new symbols, which are renamed to the first ones. A SymInt keeps the expression
that it was made with beside the one that is left after replacing. The same in torch 2.11 to 2.13.

AOTAutograd takes a call for dead whose size nothing reads but assertions that are True by now, as those are of a size
that is a number since it was asserted to be one. AOTAutograd removes such a call, and the check with it, for every
backend but litz (`keeps_asserted_calls`). In torch 2.13 these are calls traced as other ops (`x[torch.where(x > 0)]`).
Before, they are all calls: dynamo puts assertions of its own in place of torch._check, so that a user's message is lost
before a backend is called, and asserts an equality as True.
"""

from __future__ import annotations

import contextlib
import operator
from typing import Any

import sympy
import torch
from torch._ops import OpOverload
from torch.fx.experimental.symbolic_shapes import CallMethodKey, ShapeEnv, canonicalize_bool_expr
from torch.utils._pytree import SequenceKey

from .rules import in_this_thread

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_OWN_WORDS = "Runtime assertion failed for expression"
"""How dynamo and torch.export begin the message of an assertion to which the user gave none."""


def traced_expr(shape_env: ShapeEnv | None, value: Any) -> Any:
    """The expression that a SymInt, SymFloat or SymBool was made with, nothing replaced, in the first symbols' names;
    other values as sympy has them."""
    if not isinstance(value, _SYMBOLIC):
        return sympy.sympify(value)
    return first_names(shape_env, value.node._expr)


def first_names(shape_env: ShapeEnv | None, expr: Any) -> Any:
    """Returns `expr` with the symbols of later traces named as the first trace named them."""
    names = {} if shape_env is None else shape_env.unbacked_renamings
    while names and expr.free_symbols & names.keys():
        expr = expr.xreplace(names)
    return expr


def replaced(shape_env: ShapeEnv | None, expr: Any) -> Any:
    """Returns `expr` with every symbol that is known to equal something else replaced by that."""
    return expr if shape_env is None else shape_env.replace(expr)


def is_data_dependent(shape_env: ShapeEnv | None, symbol: sympy.Symbol) -> bool:
    """Returns whether `symbol` was made for a value that only a run tells, replaced since or not."""
    return shape_env is not None and symbol in shape_env.var_to_range and symbol not in shape_env.backed_var_to_val


def may_leave_64_bits(number: object) -> bool:
    """Returns whether a number has an integer in it, worked out of data, that 64 bits may not hold, as kernels have."""
    if not isinstance(number, (torch.SymInt, torch.SymFloat)):
        return False
    env, parts = number.node.shape_env, sympy.preorder_traversal(number.node.expr)
    symbols = {s for part in parts if part.is_integer and not part.is_Symbol for s in part.free_symbols}
    return any(is_data_dependent(env, s) and env.var_to_range[s].lower < 0 for s in symbols)


def depends_on_data(target: Any) -> bool:
    """Returns whether the sizes or scalars that `target` returns depend on the data that it is given."""
    tags = target.tags if isinstance(target, OpOverload) else ()
    return torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags


def bindings_of(value: Any) -> dict[sympy.Symbol, tuple[Any, ...]]:
    """Returns the symbols that stand for data-dependent sizes and scalars in a call's fake result, each with the key
    path to its value."""
    found: dict[sympy.Symbol, tuple[Any, ...]] = {}

    def note(item: Any, path: tuple[Any, ...]) -> None:
        if isinstance(item, (list, tuple)):
            for position, part in enumerate(item):
                note(part, (*path, SequenceKey(position)))
        elif isinstance(item, torch.Tensor):
            for dim, size in enumerate(item.shape):
                note(size, (*path, CallMethodKey("size"), SequenceKey(dim)))
        elif isinstance(item, (torch.SymInt, torch.SymFloat)):
            expr = item.node._expr
            if expr.is_Symbol and is_data_dependent(item.node.shape_env, expr):
                found.setdefault(expr, path)

    note(value, ())
    return found


def sizes_taken_for_known(node: torch.fx.Node) -> dict[sympy.Symbol, tuple[tuple[Any, ...], int]]:
    """Sizes that depend on data and are numbers in the fake result of `node`, which binds no symbol: a new symbol for
    each, the key path to the size, and the number. torch has such results of a call that repeats an earlier one, whose
    size was decided; the assertion is about the earlier call, which may be gone."""
    target, value = node.target, node.meta.get("val")
    if not isinstance(target, OpOverload) or torch.Tag.dynamic_output_shape not in target.tags:
        return {}
    results: list[tuple[tuple[Any, ...], Any]] = [((), value)]
    if isinstance(value, (list, tuple)):
        results = [((SequenceKey(number),), item) for number, item in enumerate(value)]
    found: dict[sympy.Symbol, tuple[tuple[Any, ...], int]] = {}
    for path, tensor in results:
        for dim, size in enumerate(tensor.shape if isinstance(tensor, torch.Tensor) else ()):
            if isinstance(size, int):
                symbol = sympy.Symbol(f"{node.name}_size{len(found)}", integer=True, nonnegative=True)
                found[symbol] = ((*path, CallMethodKey("size"), SequenceKey(dim)), size)
    return found


def runtime_asserts(shape_env: ShapeEnv | None) -> list[Any]:
    """Returns the conditions that a run must check, in torch's order, with symbols by their first names."""
    if shape_env is None:
        return []
    found = (item.expr for asserts in shape_env.deferred_runtime_asserts.values() for item in asserts)
    return [first_names(shape_env, expr) for expr in found]


def same_condition(condition: Any) -> Any:
    """Returns a form that conditions of equal meaning share where that is easily seen: 4 <= u, u >= 4 and u > 3."""
    found = canonicalize_bool_expr(condition)
    if isinstance(found, sympy.StrictLessThan) and all(side.is_integer for side in found.args):
        left, right = found.args
        return sympy.Le(left, right - 1) if right.is_Integer else sympy.Le(left + 1, right)
    return found


def implied_by_ranges(shape_env: ShapeEnv, condition: Any) -> bool:
    """Returns whether a condition holds for all values in the ranges of its symbols, whatever else was asserted."""
    found = shape_env.bound_sympy(condition)
    return bool(found.is_bool) and found.is_singleton() and bool(found.lower)


def keeps_asserted_calls(module: Any) -> contextlib.AbstractContextManager[Any]:
    """While it lasts, torch takes no call that finds out a size or scalar for dead where `module`, as dynamo captured
    it, asserts something about one (see above)."""
    if not isinstance(module, torch.fx.GraphModule) or not any(map(asserted, module.graph.nodes)):
        return contextlib.nullcontext()
    is_impure = torch.fx.Node.is_impure

    def is_impure_or_finds_out(node: torch.fx.Node, impure_random: bool = True) -> bool:
        return bool(node.meta.get("unbacked_bindings")) or is_impure(node, impure_random)

    return in_this_thread(torch.fx.Node, "is_impure", is_impure_or_finds_out)


def asserted(node: torch.fx.Node) -> tuple[Any, str] | None:
    """(condition, message) of a node that asserts a scalar: a SymBool or bool, and "" for a message that is not the
    user's. None for other nodes, and for conditions without a value on record."""
    if node.target is not torch.ops.aten._assert_scalar.default:
        return None
    condition: Any = node.args[0]
    if isinstance(condition, torch.fx.Node):
        condition = condition.meta.get("val", condition.meta.get("example_value"))
    if not isinstance(condition, (torch.SymBool, bool)):
        return None
    message = str(node.args[1]) if len(node.args) > 1 else str(node.kwargs.get("assert_msg", ""))
    return condition, "" if message.startswith(_OWN_WORDS) else message


def drop_settled(module: Any) -> None:
    """Removes the assertions about sizes of inputs, which hold where dynamo's guards do, from a dynamo graph that also
    asserts something about data. AOTAutograd puts one node in the place of equal symbolic values where the first is
    computed of sizes of inputs (torch 2.11 to 2.13). A condition that is true of all sizes equals a scalar that was
    asserted to be True: the call that finds the scalar out would be gone, and the check of the data with the call."""
    if not isinstance(module, torch.fx.GraphModule):
        return
    found = [node for node in module.graph.nodes if asserted(node)]
    settled = [node for node in found if _of_inputs(node)]
    if not settled or len(settled) == len(found):
        return
    for node in settled:
        module.graph.erase_node(node)
    for node in reversed(list(module.graph.nodes)):
        if isinstance(node.meta.get("example_value"), torch.SymBool) and not node.users and _of_inputs(node):
            module.graph.erase_node(node)
    module.recompile()


def _of_inputs(node: torch.fx.Node) -> bool:
    """Returns whether a node is computed only from inputs, and from sizes of inputs that guards know."""
    waiting, seen = list(node.all_input_nodes), set()
    while waiting:
        item = waiting.pop()
        if item in seen:
            continue
        seen.add(item)
        if item.op in ("placeholder", "get_attr"):
            if bindings_of(item.meta.get("example_value", item.meta.get("val"))):
                return False
            continue
        if not isinstance(item.meta.get("example_value", item.meta.get("val")), (*_SYMBOLIC, int, float, bool)):
            return False
        if depends_on_data(item.target) or item.target in ("item", "tolist") or item.meta.get("unbacked_bindings"):
            return False
        waiting.extend(item.all_input_nodes)
    return True


def assertion_messages(module: torch.fx.GraphModule) -> list[tuple[Any, str]]:
    """Returns (condition as traced, message) of each assertion in a dynamo graph to which the user gave a message."""
    found = []
    for node in module.graph.nodes:
        said = asserted(node)
        if said is not None and said[1] and isinstance(said[0], torch.SymBool):
            found.append((said[0].node._expr, said[1]))
    return found


def unclaimed(module: torch.fx.GraphModule) -> list[Any]:
    """Conditions (as traced) that torch asserts where a dynamo graph is traced again and that the program does not
    claim: that the base of a power is not negative, where all exponents are whole numbers (`SymFloat.__pow__`).
    Before torch 2.13 a claim about such a base is a call of torch._check in the graph, and no assertion."""
    whole: dict[Any, bool] = {}
    for node in module.graph.find_nodes(op="call_function", target=operator.pow):
        base, exponent = node.args
        value = base.meta.get("val", base.meta.get("example_value")) if isinstance(base, torch.fx.Node) else base
        if isinstance(value, torch.SymFloat):
            is_whole = isinstance(exponent, (int, float)) and float(exponent).is_integer()
            whole[value.node._expr] = whole.get(value.node._expr, True) and is_whole
    claims = {_with_whole_numbers(claim) for claim in _checked(module)}
    found = (sympy.Ge(base, 0) for base, is_whole in whole.items() if is_whole)
    return [condition for condition in found if _with_whole_numbers(condition) not in claims]


def _checked(module: torch.fx.GraphModule) -> list[Any]:
    """The conditions of calls of torch._check in a dynamo graph."""
    given = (node.args[0] for node in module.graph.find_nodes(op="call_function", target=torch._check) if node.args)
    values = (item.meta.get("val", item.meta.get("example_value")) for item in given if isinstance(item, torch.fx.Node))
    return [value.node._expr for value in values if isinstance(value, torch.SymBool)]


def _with_whole_numbers(condition: Any) -> Any:
    """A condition with 0 in the place of 0.0, in the form that conditions of the same meaning share."""
    numbers = {number: sympy.Integer(int(number)) for number in condition.atoms(sympy.Float) if number == int(number)}
    return same_condition(condition.xreplace(numbers))
