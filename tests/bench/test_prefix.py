"""The stand-in engine's prefix cache, and the table with its ratios."""

from bench.prefix import BLOCK, STRATEGIES, TOKEN, Figures, PrefixCache, floor, table

TEXT = "".join(chr(97 + number % 26) + str(number) for number in range(400))[: 8 * BLOCK * TOKEN]


def test_a_cache_has_the_blocks_of_a_prefix_and_forgets_the_oldest() -> None:
    cache = PrefixCache(8 * BLOCK)
    assert cache.add(TEXT) == 0
    assert cache.add(TEXT[: 3 * BLOCK * TOKEN] + "another end " * 40) == 3 * BLOCK
    assert cache.add("x" + TEXT) == 0
    assert cache.add(TEXT) == 0


def test_ratios_are_to_round_robin_under_the_same_load() -> None:
    figures = [
        Figures("a", name, 10.0 * at, 0.5, 8.0, 100.0 / at, 200.0, 25.0) for at, name in enumerate(STRATEGIES, 1)
    ]
    assert "| a | `prefix_aware` | 30 | 3.00 × | 50% | 8 | 33 | 0.33 × | 200 | 25 |" in table(figures).splitlines()


def test_no_strategy_can_be_faster_than_the_prefill_of_what_no_engine_has_had() -> None:
    median = floor("8 turns of 400 tokens", 80)
    assert 25 <= median <= 28, "a question of 250 tokens, at 0.1 ms; what an engine generated is in its cache"
