"""Index expressions as NumPy text. In: sympy expressions over loop variables, sizes and placeholders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from litz.ir.index import Expr, FloorDiv, Mod, PythonMod, Symbol

FOLDED = {"Max": "np.maximum", "Min": "np.minimum"}


def index_text(expr: Expr, names: Mapping[Symbol, str]) -> str:
    """The expression of arrays and ints. names: the text of each symbol. NotImplementedError if it has no text."""
    if expr.is_Integer:
        return str(expr)
    if expr.is_Symbol:
        return names[expr]
    args = [index_text(arg, names) for arg in sorted(expr.args, key=str)]
    if expr.is_Add:
        return f"({' + '.join(args)})"
    if expr.is_Mul:
        return f"({' * '.join(args)})"
    if expr.is_Pow and expr.exp.is_Integer and int(expr.exp) > 0:
        return f"({index_text(expr.base, names)} ** {expr.exp})"
    if isinstance(expr, (FloorDiv, Mod, PythonMod)):
        left, right = (index_text(arg, names) for arg in expr.args)
        return f"({left} {'//' if isinstance(expr, FloorDiv) else '%'} {right})"
    name = type(expr).__name__
    if name in FOLDED:
        text = args[0]
        for arg in args[1:]:
            text = f"{FOLDED[name]}({text}, {arg})"
        return text
    raise NotImplementedError(f"the index expression {expr}")


def tuple_text(items: Sequence[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
