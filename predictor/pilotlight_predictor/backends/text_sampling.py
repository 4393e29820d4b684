"""Scores of a step → the next token of each row, by the row's own sampling parameters.

Between the model's forward pass and the transcript (text_engine.py). A row that only takes the most likely token costs
one argmax over the whole batch; any other is looked at alone, with a random generator of its own, so that a seed gives
the same text whoever else is being answered.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pilotlight_predictor.generation import Sampling

if TYPE_CHECKING:
    import torch


class Choice(NamedTuple):
    """`logprob` and `top` (token → its logprob, best first) are there when they were asked for."""

    token: int
    logprob: float = 0.0
    top: Mapping[int, float] = {}


class Draw:
    """One row's way of choosing: its parameters, its random numbers, and the tokens it chose so far."""

    def __init__(self, sampling: Sampling, index: int) -> None:
        self.sampling = sampling
        self._index = index
        self._counts: Counter[int] = Counter()
        self._counted = bool(sampling.presence_penalty or sampling.frequency_penalty)
        self._generator: Any = None

    def choose(self, scores: "torch.Tensor") -> Choice:
        """`scores` are the model's for the whole vocabulary, one row of them."""
        wanted = self.sampling.logprobs
        raw = scores.float()
        token = self._pick(self._adjusted(raw))
        if self._counted:
            self._counts[token] += 1
        if wanted < 0:
            return Choice(token)
        told = raw.log_softmax(-1)
        best = told.topk(min(wanted, told.numel())) if wanted else None
        top = dict(zip(best.indices.tolist(), best.values.tolist(), strict=True)) if best is not None else {}
        return Choice(token, told[token].item(), top)

    def _adjusted(self, scores: "torch.Tensor") -> "torch.Tensor":
        sampling = self.sampling
        changes = {token: bias for token, bias in sampling.logit_bias.items() if token < scores.numel()}
        for token, count in self._counts.items():
            penalty = sampling.presence_penalty + sampling.frequency_penalty * count
            changes[token] = changes.get(token, 0.0) - penalty
        if not changes:
            return scores
        import torch

        where = torch.tensor(list(changes), device=scores.device)
        return scores.index_add(0, where, torch.tensor(list(changes.values()), device=scores.device))

    def _pick(self, scores: "torch.Tensor") -> int:
        sampling = self.sampling
        if sampling.greedy:
            return int(scores.argmax())
        if sampling.top_k:
            best = scores.topk(min(sampling.top_k, scores.numel()))
            return int(best.indices[self._roll(best.values / sampling.temperature)])
        if sampling.top_p < 1.0:
            ordered = scores.sort(descending=True)
            return int(ordered.indices[self._roll(ordered.values / sampling.temperature)])
        return self._roll(scores / sampling.temperature)

    def _roll(self, scores: "torch.Tensor") -> int:
        """A place in `scores`, by chance; they are in descending order when top_p cuts their tail off."""
        likely = scores.softmax(-1)
        if self.sampling.top_p < 1.0:
            before = likely.cumsum(-1) - likely
            likely = likely.masked_fill(before >= self.sampling.top_p, 0.0)
        return int(likely.cpu().multinomial(1, generator=self._random()))

    def _random(self) -> Any:
        if self._generator is None:
            import torch

            self._generator = torch.Generator()
            seed = self.sampling.seed
            self._generator.seed() if seed is None else self._generator.manual_seed((seed + self._index) % 2**63)
        return self._generator


def choose_all(scores: "torch.Tensor", draws: Sequence[Draw]) -> list[Choice]:
    """One choice per row of `scores`."""
    if all(draw.sampling.plain for draw in draws):
        return [Choice(token) for token in scores.argmax(-1).tolist()]
    best = scores.argmax(-1).tolist() if any(draw.sampling.plain for draw in draws) else []
    return [
        Choice(best[row]) if draw.sampling.plain else draw.choose(scores[row]) for row, draw in enumerate(draws)
    ]  # fmt: skip
