"""Sizes that may vary, as text and back: "s77*s27 + 1". In, a sympy expression; out, text, which is read by rules of
this file and never executed, so that it may come from a file."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

_OPERATORS: Mapping[type[ast.AST], Callable[..., int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
}
_FUNCTIONS: Mapping[str, Callable[..., int]] = {"Max": max, "Min": min, "Mod": operator.mod}


def size_text(expr: Any) -> str | None:
    """Returns a sympy expression of whole numbers as text; None where it has a function that `read_size` does not
    know."""
    text = str(expr)
    try:
        read_size(text, dict.fromkeys(map(str, expr.free_symbols), 2))
    except (ValueError, ArithmeticError):
        return None
    return text


def read_size(text: str, sizes: Mapping[str, int]) -> int:
    """Returns the number that an expression has for the given sizes. Errors: ValueError for a text that is no such
    expression."""
    try:
        return _number(ast.parse(text, mode="eval").body, sizes)
    except (SyntaxError, KeyError, TypeError) as error:
        raise ValueError(f"{text!r} is no size in {', '.join(sizes) or 'numbers'}") from error


def _number(node: ast.expr, sizes: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return sizes[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_number(left, sizes), _number(right, sizes))
        case ast.UnaryOp(op=op, operand=operand):
            return _OPERATORS[type(op)](_number(operand, sizes))
        case ast.Call(func=ast.Name(id=name), args=args):
            return _FUNCTIONS[name](*(_number(item, sizes) for item in args))
    raise ValueError(f"{ast.dump(node)} in a size")
