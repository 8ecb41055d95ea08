"""The option ``where=``: a condition on the columns of the index, as text or as a pyarrow expression.

The text has the syntax of Python's comparisons. It is parsed with `ast`, never evaluated.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from wds_tools.errors import OptionError, shortened

if TYPE_CHECKING:
    import pyarrow.compute as pc

Where = Any
"""A condition: text, or a ``pyarrow.compute.Expression``."""


def _compute() -> Any:
    """Return pyarrow.compute, which only conditions need: its import takes longer than that of pyarrow itself."""
    import pyarrow.compute  # noqa: PLC0415

    return pyarrow.compute


_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    # Division of integers in pyarrow truncates, but width / height means a fraction. By 0, as of a sample without an
    # image, it is an error there, and a null here, which meets no condition.
    ast.Div: lambda a, b: (
        a.cast(pa.float64())
        / _compute().if_else(b.cast(pa.float64()) != 0, b.cast(pa.float64()), pa.scalar(None, pa.float64()))
    ),
}
_ASSIGNMENT = re.compile(r"(?<![<>=!])=(?!=)")  # in other languages a comparison
_MAX_SHOWN = 500  # characters of a condition in a message
_ALLOWED = "comparisons such as \"width >= 256 and label in (3, 7)\" with and, or, not, in, + - * /, numbers and 'text'"


class WhereError(OptionError):
    """A condition has a mistake."""

    def __init__(self, where: Where, problem: str, span: tuple[int, int] | None = None) -> None:
        super().__init__(f"where={shortened(repr(where), _MAX_SHOWN)}: {problem}")
        self.problem = problem
        self.span = span


class Condition(NamedTuple):
    """A parsed condition.

    Attributes:
        expression: The condition for pyarrow.
        columns: The columns that it uses, of those that it may use. An expression does not tell: all of them.
    """

    expression: pc.Expression
    columns: frozenset[str]


def parse(where: Where, *, columns: Sequence[str], classes: Sequence[str]) -> Condition:
    """Turn a condition into a pyarrow expression.

    Labels can be compared with class names: ``label == "cat"``, ``label in ("cat", "dog")``.

    Args:
        where: Text, or an expression, which is returned unchanged.
        columns: Names of the columns that the condition may use.
        classes: Class names by class number.

    Raises:
        OptionError: ``where`` is neither text nor an expression.
        WhereError: The text is not a condition, or names an unknown column or class.

    >>> parse("width >= 256 and label != 3", columns=["width", "label"], classes=[]).expression
    <pyarrow.compute.Expression ((width >= 256) and (label != 3))>
    """
    if isinstance(where, _compute().Expression):
        return Condition(where, frozenset(columns))
    if not isinstance(where, str):
        raise OptionError(f"where={where!r}; allowed are text, such as 'width >= 256', and a pyarrow expression")
    text = where.strip()
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else error
        remedy = "compare with ==; " if _ASSIGNMENT.search(where) else ""
        problem, span = f"it cannot be parsed ({reason}): {remedy}allowed are {_ALLOWED}", None
        if isinstance(error, SyntaxError) and error.offset is not None and error.lineno == 1:
            at = min(error.offset - 1, len(text)) if error.offset else len(text)  # 0: the text ends too early
            start = len(where) - len(where.lstrip()) + at
            span = (start, start + 1)
        raise WhereError(where, problem, span) from error
    converter = _Converter(where, columns, {name: number for number, name in enumerate(classes)})
    try:
        return Condition(converter.convert(tree), frozenset(converter.used))
    except (RecursionError, OverflowError) as error:
        problem = "it is nested too deeply, or has a number of more than 64 bits; simplify it"
        raise WhereError(where, problem) from error


class _Converter:
    """Converts a syntax tree into an expression; nodes that it does not know are refused."""

    def __init__(self, text: str, columns: Sequence[str], class_numbers: Mapping[str, int]) -> None:
        self._text = text
        self._columns = columns
        self._class_numbers = class_numbers
        self.used: set[str] = set()

    def convert(self, node: ast.expr) -> pc.Expression:
        """Convert a node with all its children."""
        match node:
            case ast.BoolOp(op=op, values=values):
                parts = [self.convert(value) for value in values]
                result = parts[0]
                for part in parts[1:]:
                    result = result & part if isinstance(op, ast.And) else result | part
                return result
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return ~self.convert(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                return _ARITHMETIC[type(op)](self.convert(left), self.convert(right))
            case ast.Compare(left=left, ops=ops, comparators=rights):
                return self._convert_chain([left, *rights], ops)
        return self._convert_leaf(node)

    def _convert_leaf(self, node: ast.expr) -> pc.Expression:
        if isinstance(node, ast.Name | ast.Attribute):
            return _compute().field(self._column(ast.unparse(node), node))
        value = _literal(node)
        if value is not None:
            return _compute().scalar(value)
        raise self._error(f"{ast.unparse(node)!r} is not allowed; allowed are {_ALLOWED}", node)

    def _convert_chain(self, terms: Sequence[ast.expr], ops: Sequence[ast.cmpop]) -> Any:
        """Convert a chain of comparisons such as ``100 < width < 600``."""
        result = None
        for left, op, right in zip(terms, ops, terms[1:], strict=False):
            part = self._compare(left, op, right)
            result = part if result is None else result & part
        return result

    def _compare(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Any:
        if isinstance(op, ast.In | ast.NotIn) and isinstance(right, ast.Name | ast.Attribute):
            contained = self._contains(left, right)
            return ~contained if isinstance(op, ast.NotIn) else contained
        left, right = self._classes_as_numbers(left, right), self._classes_as_numbers(right, left)
        if isinstance(op, ast.In | ast.NotIn):
            value = self.convert(left)
            # `isin` alone is False for a null, which would then meet `not in`. A null meets no condition.
            result = _compute().if_else(
                value.is_valid(), value.isin(self._values(right)), _compute().scalar(pa.scalar(None, pa.bool_()))
            )
            return ~result if isinstance(op, ast.NotIn) else result
        if type(op) not in _COMPARE:
            comparison = ast.unparse(ast.Compare(left, [op], [right]))
            raise self._error(f"{comparison!r} is not allowed; allowed are {_ALLOWED}", left)
        return _COMPARE[type(op)](self.convert(left), self.convert(right))

    def _contains(self, left: ast.expr, right: ast.expr) -> Any:
        """Convert a search for a text in a column of texts."""
        text = _literal(left)
        if not isinstance(text, str):
            raise self._error("'in' requires a text before the name of a column, such as 'dog' in caption", left)
        return _compute().match_substring(self.convert(right), text)

    def _values(self, node: ast.expr) -> list[Any]:
        values = list(map(_literal, node.elts)) if isinstance(node, ast.Tuple | ast.List | ast.Set) else [None]
        if None in values:
            raise self._error("'in' requires a list of values, such as (3, 7)", node)
        try:
            pa.array(values)
        except pa.ArrowInvalid as error:
            raise self._error("'in' requires values of one type, such as (3, 7) or ('a', 'b')", node) from error
        return values

    def _classes_as_numbers(self, node: ast.expr, other: ast.expr) -> ast.expr:
        """Replace class names by class numbers if ``other`` is the column ``label``."""
        if not (isinstance(other, ast.Name) and other.id == "label"):
            return node
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return ast.copy_location(ast.Constant(self._class_number(node.value, node)), node)
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            numbers = [self._classes_as_numbers(element, other) for element in node.elts]
            return ast.copy_location(ast.Tuple(numbers, ast.Load()), node)
        return node

    def _class_number(self, name: str, node: ast.expr) -> int:
        if name not in self._class_numbers:
            names = ", ".join(list(self._class_numbers)[:10]) or "no class names"
            raise self._error(f"there is no class {name!r}; the dataset has {names}", node)
        return self._class_numbers[name]

    def _column(self, name: str, node: ast.expr) -> str:
        if name not in self._columns:
            raise self._error(f"there is no column {name!r}; the index has {', '.join(self._columns)}", node)
        self.used.add(name)
        return name

    def _error(self, problem: str, node: ast.expr) -> WhereError:
        """Return the error for a part of the condition."""
        before = len(self._text) - len(self._text.lstrip())
        if node.lineno != 1 or node.end_lineno != 1 or node.end_col_offset is None:
            return WhereError(self._text, problem)
        line = self._text.lstrip().encode()  # ast counts bytes
        start, stop = (len(line[:offset].decode()) for offset in (node.col_offset, node.end_col_offset))
        return WhereError(self._text, problem, (before + start, before + stop))


def _literal(node: ast.expr) -> bool | int | float | str | None:
    """Return the value of a number, which may be negative, or of a text; None for any other node."""
    match node:
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
    return None
