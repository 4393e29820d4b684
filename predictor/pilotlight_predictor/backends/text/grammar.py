"""Constrained decoding: which tokens may come next, so that a text follows a JSON schema or a tool call's format.

llguidance compiles a grammar and computes the mask of each step. Schemas come from clients: size, repetitions and the
library's own limits bound a compilation and a step; a compilation has a stack of its own, as it recurses along `$ref`.
"""

import re
import threading
from collections import OrderedDict
from math import prod
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

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
COMPILE_S: Final = 10.0
STEP_S: Final = 0.5
# Product of the counts {n,m} in one text: 10,000 take 40 ms for a step, 1,000,000 take 3 s.
MAX_REPEATS: Final = 10_000
# Lines of our grammar in a message of llguidance, which are none of the client's.
LISTING: Final = re.compile(r"^at \d+\(\d+\): failed to compile JSON schema: |^ *(\d+ \|.*|\^+)$", re.MULTILINE)
REPEAT: Final = re.compile(r"\{(\d{1,9}),?(\d{0,9})\}")
MAX_INTERSECTED: Final = 12  # patterns beside `allOf`: 15 take a second to compile, and each one more twice as long
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


class GrammarCompiler:
    """Compiled grammars of one model, cached by their text. `ends` are the tokens that end a text."""

    # Compilation of any model that took too long: it cannot be ended, and takes a core.
    _abandoned: threading.Thread | None = None

    def __init__(self, tokens: PromptTokenizer, ends: frozenset[int]) -> None:
        self._tokens, self._ends = tokens, sorted(ends)
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._cache: OrderedDict[str, llguidance.LLMatcher] = OrderedDict()
        self._lock = threading.Lock()  # of the cache, and one compilation at a time

    def compile(self, text: str, field: str, count: int) -> list[Grammar]:
        """Return grammars for `count` choices. Raises BadField that names `field`."""
        with self._lock:
            matcher = self._cache.pop(text, None) or self._compile_bounded(text, field)
            self._cache[text] = matcher
            if len(self._cache) > CACHED:
                self._cache.popitem(last=False)
            return [Grammar(matcher.deep_copy()) for _ in range(count)]

    def _compile_bounded(self, text: str, field: str) -> "llguidance.LLMatcher":
        if len(text) > MAX_SIZE:
            raise BadField(field, f"{field} has {len(text)} characters of schemas, must have at most {MAX_SIZE}")
        if '"allOf"' in text and text.count('"pattern"') > MAX_INTERSECTED:
            raise BadField(field, f"{field} has allOf and more than {MAX_INTERSECTED} patterns; join them")
        if self._abandoned is not None and self._abandoned.is_alive():
            raise Unavailable("another JSON schema is still being compiled; retry later")
        # A text of the schema is taken for a pattern too: a description with such counts is rare.
        for string in re.findall(r'"(?:[^"\\]|\\.)*"', text):
            counts = [max(int(end or 0), int(begin)) for begin, end in REPEAT.findall(string)]
            if prod(max(count, 1) for count in counts) > MAX_REPEATS:
                raise BadField(field, f"{field} has a pattern whose repetitions exceed {MAX_REPEATS}")
        results: list[Any] = []

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
        thread.join(COMPILE_S)
        GrammarCompiler._abandoned = None if results else thread
        result = results[0] if results else f"it takes longer than {COMPILE_S:g} s to compile"
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
            raise BadRequest("constrained decoding needs llguidance: pip install 'pilotlight[text]'") from None
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
