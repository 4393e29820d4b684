"""Arguments of a TorchScript `forward` that are indices, by its graph. Used by derived_signature.py.

The layers do not show which of several arguments an embedding takes, and a frozen module has none. The graph does: the
uses of an argument are followed to the operators that look something up, which refuse floating point.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, Final


class _Use(Enum):
    """What a value is used for."""

    INDEX = auto()
    CAST_INDEX = auto()  # after a cast
    OTHER = auto()


# Operator → positions of its arguments that are indices.
_LOOKUPS: Final[Mapping[str, frozenset[int]]] = {
    "aten::embedding": frozenset({1}),
    "aten::embedding_bag": frozenset({1, 2}),  # and offsets
    "aten::one_hot": frozenset({0}),
    "aten::index_select": frozenset({2}),
    "aten::gather": frozenset({2}),
}
_CASTS: Final = frozenset({"aten::to", "aten::long", "aten::int", "aten::type_as"})
# Operators whose result is of the type of their tensor.
_SAME_TYPE: Final = frozenset(
    {
        "aten::add", "aten::sub", "aten::mul", "aten::remainder", "aten::clamp", "aten::masked_fill", "aten::cat",
        "aten::stack", "aten::view", "aten::reshape", "aten::flatten", "aten::unflatten", "aten::squeeze",
        "aten::unsqueeze", "aten::permute", "aten::transpose", "aten::t", "aten::expand", "aten::repeat",
        "aten::select", "aten::slice", "aten::narrow", "aten::chunk", "aten::split", "aten::unbind",
        "aten::contiguous", "aten::clone", "aten::detach", "prim::ListConstruct", "prim::ListUnpack",
        "prim::TupleConstruct", "prim::TupleUnpack", "prim::unchecked_cast",
    }
)  # fmt: skip
# Uses that any type has: of the length of a sentence, of a mask that is compared.
_NEUTRAL: Final = frozenset(
    {
        "aten::size", "aten::len", "aten::dim", "aten::numel", "aten::eq", "aten::ne", "aten::bool",
        "aten::is_floating_point", "aten::__is__", "aten::__isnot__", "prim::device", "prim::dtype", "prim::layout",
        "prim::RaiseException",
    }
)  # fmt: skip
_BOOL: Final = 11  # as a graph has torch.bool


def index_arguments(module: Any) -> frozenset[str] | None:
    """Return the names of the arguments that are integers: indices, and masks that are compared with a number.

    An argument that is cast first may have any type; it is one if it serves for nothing else. None: no TorchScript.
    """
    graph = getattr(module, "inlined_graph", None)
    if graph is None:
        return None
    arguments = zip(list(graph.inputs())[1:], module.forward.schema.arguments[1:], strict=True)
    return frozenset(argument.name for value, argument in arguments if _is_index(value))


def _is_index(argument: Any) -> bool:
    """Whether a lookup gets the argument, if after a cast, then no other operator does."""
    found, seen, pending = set[_Use](), set[tuple[int, _Use]](), [(argument, _Use.INDEX)]
    while pending:
        value, lookup = pending.pop()
        if (value.unique(), lookup) in seen:  # the paths of x * x + x are many
            continue
        seen.add((value.unique(), lookup))
        for use in value.uses():
            node, kind = use.user, use.user.kind()
            if use.offset in _LOOKUPS.get(kind, ()):
                found.add(lookup)
            elif kind in _CASTS and use.offset == 0:
                pending += [] if _is_to_bool(node) else [(node.output(), _Use.CAST_INDEX)]
            elif kind in _SAME_TYPE:
                pending += [(output, lookup) for output in node.outputs()]
            elif (branch := _branch(node)) is not None:
                pending.append((list(branch.outputs())[use.offset], lookup))
            elif kind not in _NEUTRAL:
                found.add(_Use.OTHER)
    return _Use.INDEX in found or (_Use.OTHER not in found and bool(argument.uses()))


def _is_to_bool(node: Any) -> bool:
    """Whether a cast is one of `aten::to` to torch.bool, which its overloads have at several places."""
    return node.kind() == "aten::to" and any(each.toIValue() == _BOOL for each in list(node.inputs())[1:3])


def _branch(node: Any) -> Any:
    """Return the `if` whose branch the node is the end of; None for any other node."""
    owner = node.owningBlock().owningNode() if node.kind() == "prim::Return" else None
    return owner if owner is not None and owner.kind() == "prim::If" else None
