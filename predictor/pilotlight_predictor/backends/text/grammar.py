"""Constrained decoding: which tokens may come next, so that a text follows a JSON schema or a tool call's format.

llguidance compiles a grammar and computes the mask of each step. Schemas come from clients: size, repetitions and the
library's own limits bound a compilation and a step; a compilation has a stack of its own, as it recurses along `$ref`.
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Iterable
from math import prod
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import numpy as np

from pilotlight_predictor.backends.text.prompt import PromptTokenizer
from pilotlight_predictor.core.generation_params import BadField
from pilotlight_predictor.core.tensors import Array
from pilotlight_predictor.errors import BadRequest, Unavailable

if TYPE_CHECKING:
    import llguidance

MAX_SIZE: Final = 65_536  # characters
# 1,500 levels of `$ref` overflow a stack of 8 MiB; text of MAX_SIZE has room for 6,500.
STACK: Final = 256 << 20
COMPILE_S: Final = 3.0  # other requests to the model wait meanwhile
TOKENIZER_S: Final = 10.0  # more for the first compilation, which prepares the tokenizer
STEP_S: Final = 0.5
# Product of the counts {n,m} in one text: 10,000 take 40 ms for a step, 1,000,000 take 3 s.
MAX_REPEATS: Final = 10_000
# Lines of our grammar in a message of llguidance, which are none of the client's.
LISTING: Final = re.compile(r"^at \d+\(\d+\): failed to compile JSON schema: |^ *(\d+ \|.*|\^+)$", re.MULTILINE)
REPEAT: Final = re.compile(r"\{(\d{1,9}),?(\d{0,9})\}")
MAX_INTERSECTED: Final = 10  # patterns for one text: 12 take a second to compile, and each one more thrice as long
CACHED: Final = 16
LIMITS: Final = {
    "initial_lexer_fuel": 300_000, "step_lexer_fuel": 50_000, "step_max_items": 20_000, "max_lexer_states": 20_000,
    "max_grammar_size": 100_000, "verbose_errors": False,
}  # fmt: skip


class Grammar:
    """State of one choice in a grammar; used by the engine's thread."""

    def __init__(self, matcher: "llguidance.LLMatcher") -> None:
        self._matcher = matcher

    def allowed(self, size: int) -> Array | None:
        """Return which of the first `size` tokens may come next; None if the grammar is too complex."""
        begin = perf_counter()
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        slow = perf_counter() - begin > STEP_S
        mask = np.unpackbits(bits, bitorder="little")[:size].astype(bool)
        if slow or self._matcher.is_error() or not mask.any():
            return None
        return np.pad(mask, (0, size - len(mask)))

    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)

    @property
    def finished(self) -> bool:
        return bool(self._matcher.is_stopped())


def check_patterns(schemas: Iterable[Any], field: str) -> None:
    """Raise BadField if one text must match too many patterns at once, whose automata are multiplied."""
    try:
        count = max((_intersected(schema, schema, {}) for schema in schemas), default=0)
    except RecursionError:
        raise BadField(field, f"{field} has a JSON schema that is nested too deeply") from None
    if count > MAX_INTERSECTED:
        problem = f"has more than {MAX_INTERSECTED} patterns for one text, through allOf, anyOf or $ref; join them"
        raise BadField(field, f"{field} {problem}")


def _intersected(schema: Any, root: Any, known: dict[int, int]) -> int:
    """Return how many patterns a text may have to match: a schema's own, and those of what it refers to."""
    if isinstance(schema, list):  # of alternatives, of which one applies
        return max((_intersected(each, root, known) for each in schema), default=0)
    if not isinstance(schema, dict):
        return 0
    if id(schema) not in known:
        known[id(schema)] = 0  # for a cycle
        alternatives = [schema.get(name) for name in ("anyOf", "oneOf")]
        together = [*_members(schema.get("allOf")), *alternatives, _referred(root, schema.get("$ref"))]
        parts = [schema.get(name) for name in ("items", "prefixItems", "additionalItems", "additionalProperties")]
        parts += [*_members(schema.get("properties")), *_members(schema.get("patternProperties"))]
        count = ("pattern" in schema) + ("format" in schema) + _intersected(parts, root, known)
        known[id(schema)] = count + sum(_intersected(each, root, known) for each in together)
    return known[id(schema)]


def _members(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


def _referred(root: Any, reference: Any) -> Any:
    """Return the schema that a `$ref` within the document points to; None for any other."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found = root
    for part in unquote(reference[1:]).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(name)
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found


class GrammarCompiler:
    """Compiled grammars of one model, cached by their text. `ends` are the tokens that end a text."""

    # Compilation of any model that took too long: it cannot be ended, and takes a core.
    _abandoned: threading.Thread | None = None

    def __init__(self, tokens: PromptTokenizer, ends: frozenset[int]) -> None:
        self._tokens, self._ends = tokens, sorted(ends)
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._cache: OrderedDict[str, llguidance.LLMatcher] = OrderedDict()
        self._lock = threading.Lock()  # of the cache, and one compilation at a time

    def compile(self, text: str, schemas: Iterable[Any], field: str, count: int) -> list[Grammar]:
        """Return grammars for `count` choices; `schemas` are those in `text`. Raises BadField that names `field`."""
        with self._lock:
            matcher = self._cache.pop(text, None)
            if matcher is None:
                check_patterns(schemas, field)
                matcher = self._compile_bounded(text, field)
            self._cache[text] = matcher
            if len(self._cache) > CACHED:
                self._cache.popitem(last=False)
            return [Grammar(matcher.deep_copy()) for _ in range(count)]

    def _compile_bounded(self, text: str, field: str) -> "llguidance.LLMatcher":
        if len(text) > MAX_SIZE:
            raise BadField(field, f"{field} has {len(text)} characters of schemas, must have at most {MAX_SIZE}")
        if self._abandoned is not None and self._abandoned.is_alive():
            raise Unavailable("another JSON schema is still being compiled; retry later")
        # A text of the schema is taken for a pattern too: a description with such counts is rare.
        for string in re.findall(r'"(?:[^"\\]|\\.)*"', text):
            counts = [max(int(end or 0), int(begin)) for begin, end in REPEAT.findall(string)]
            if prod(max(count, 1) for count in counts) > MAX_REPEATS:
                raise BadField(field, f"{field} has a pattern whose repetitions exceed {MAX_REPEATS}")
        results: list[Any] = []
        limit = COMPILE_S + (TOKENIZER_S if self._tokenizer is None else 0)

        def work() -> None:
            try:
                results.append(self._compile(text))
            except Exception as error:  # raised below, in the caller's thread
                results.append(error)

        previous = threading.stack_size(STACK)
        try:
            thread = threading.Thread(target=work, name="pilotlight-grammar", daemon=True)
            thread.start()
        finally:
            threading.stack_size(previous)
        thread.join(limit)
        GrammarCompiler._abandoned = None if results else thread
        result = results[0] if results else f"it takes longer than {limit:g} s to compile"
        if isinstance(result, str):
            raise BadField(field, f"{field} has a JSON schema that is not supported: {result}")
        if isinstance(result, Exception):
            raise result
        return result

    def _compile(self, text: str) -> "llguidance.LLMatcher | str":
        """Return the matcher, or what is wrong with the grammar."""
        try:
            from llguidance import LLMatcher, LLParserLimits
        except ImportError:
            raise BadRequest("constrained decoding needs llguidance: the operator installs the text extra") from None
        if self._tokenizer is None:
            self._tokenizer = self._tokens.grammar_tokenizer(self._ends)
        grammar = LLMatcher.grammar_from_lark(text)
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=LLParserLimits(**LIMITS))
        probe = matcher.deep_copy()
        problem = matcher.get_error() or (
            "" if any(probe.compute_bitmask()) and not probe.is_error() else "no text fits it"
        )
        problem = LISTING.sub("", problem.partition(" <non-verbose")[0])
        return " ".join(problem.split())[:200] if problem else matcher
