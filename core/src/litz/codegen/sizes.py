"""Size expressions as Python text, for the wrapper."""

from __future__ import annotations

import sympy

from litz.ir.index import Expr, FloorDiv, Mod, PythonMod


def python_text(expr: int | Expr) -> str:
    """The expression in Python; its symbols are variables of the same name."""
    if isinstance(expr, int):
        return str(expr)
    if expr.is_Integer:
        return str(int(expr))
    if expr.is_Symbol:
        return str(expr.name)
    if isinstance(expr, FloorDiv):
        return f"({python_text(expr.args[0])} // {_operand(expr.args[1])})"
    if isinstance(expr, (Mod, PythonMod)):
        return f"({python_text(expr.args[0])} % {_operand(expr.args[1])})"
    if expr.is_Add:
        return "(" + " + ".join(map(python_text, expr.args)) + ")"
    if expr.is_Mul:
        return "*".join(map(python_text, expr.args))
    if expr.is_Pow and expr.exp.is_Integer and int(expr.exp) > 0:
        return f"{_operand(expr.base)}**{int(expr.exp)}"
    name = type(expr).__name__
    if name.startswith(_OPAQUE):
        return f"math.{name.removeprefix(_OPAQUE)}({python_text(expr.args[0])})"
    if name in _FUNCTIONS:
        return _FUNCTIONS[name].format(*map(_operand, expr.args), all=", ".join(map(python_text, expr.args)))
    if isinstance(expr, (sympy.And, sympy.Or)):
        return "(" + (" and " if isinstance(expr, sympy.And) else " or ").join(map(python_text, expr.args)) + ")"
    if isinstance(expr, sympy.Piecewise):
        return _piecewise(expr)
    if expr.is_number:
        number = repr(float(expr))
        return number if number[-1].isdigit() else f'float("{number}")'
    if isinstance(expr, sympy.logic.boolalg.BooleanAtom):
        return str(bool(expr))
    raise NotImplementedError(f"size expression {expr} ({name})")


def _operand(expr: int | Expr) -> str:
    """The text as one operand of an operator that binds as tightly as a product, or more so."""
    text = python_text(expr)
    product = isinstance(expr, sympy.Expr) and (expr.is_Mul or expr.is_Pow)
    return f"({text})" if product or text.startswith("-") else text


def _piecewise(expr: sympy.Piecewise) -> str:
    """The value of the first condition that holds; sizes always have one."""
    *pieces, (last, _) = expr.args
    tail = "".join(f"{python_text(value)} if {python_text(condition)} else " for value, condition in pieces)
    return f"({tail}{python_text(last)})"


_OPAQUE = "OpaqueUnaryFn_"
"""What torch names a function of Python's `math` module."""

_FUNCTIONS = {
    "Max": "max({all})",
    "Min": "min({all})",
    "Abs": "abs({0})",
    "CeilToInt": "math.ceil({0})",
    "FloorToInt": "math.floor({0})",
    "TruncToInt": "math.trunc({0})",
    "RoundToInt": "round({0})",
    "RoundDecimal": "round({all})",
    "Identity": "({0})",
    "ModularIndexing": "({0} // {1} % {2})",
    "BitwiseFn_bitwise_and": "({0} & {1})",
    "BitwiseFn_bitwise_or": "({0} | {1})",
    "BitwiseFn_bitwise_xor": "({0} ^ {1})",
    "IsNonOverlappingAndDenseIndicator": "_is_dense({all})",
    "ToFloat": "float({0})",
    "FloatTrueDiv": "({0} / {1})",
    "IntTrueDiv": "({0} / {1})",
    "TruncToFloat": "float(math.trunc({0}))",
    "PowByNatural": "({0} ** {1})",
    "FloatPow": "({0} ** {1})",
    "CleanDiv": "({0} // {1})",
    "CeilDiv": "(-(-{0} // {1}))",
    "LShift": "({0} << {1})",
    "RShift": "({0} >> {1})",
    "Pow": "({0} ** {1})",
    "Equality": "({0} == {1})",
    "Unequality": "({0} != {1})",
    "StrictLessThan": "({0} < {1})",
    "LessThan": "({0} <= {1})",
    "StrictGreaterThan": "({0} > {1})",
    "GreaterThan": "({0} >= {1})",
    "Not": "(not {0})",
    "Where": "({1} if {0} else {2})",
}


def tuple_text(values: tuple[int | Expr, ...]) -> str:
    """A Python tuple of sizes or strides."""
    items = ", ".join(map(python_text, values))
    return f"({items},)" if len(values) == 1 else f"({items})"
