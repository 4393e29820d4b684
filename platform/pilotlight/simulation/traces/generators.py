"""Artificial traces: Poisson arrivals whose rate is constant, follows the day, or jumps. The same seed, the same trace.

A generator is a function from options to a rate per bucket of time. Arrivals within a bucket are Poisson; short traces
have single requests, long ones counts, so that a week of 100 requests/s takes 5 MB.
"""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from pilotlight.simulation.trace import CountTrace, Floats, Trace
from pilotlight.simulation.traces.trace_options import DAY_S, TraceOptions

MAX_EXACT: Final = 2_000_000  # single requests of a trace: 16 MB of arrivals, about a minute of exact simulation
MAX_BUCKETS: Final = 2_000_000
Rates = Callable[[TraceOptions, Floats, float, np.random.Generator], Floats]  # of buckets by their middles and width


def poisson(options: TraceOptions, at: Floats, width: float, random: np.random.Generator) -> Floats:
    return np.full(at.size, options.number("rate"))


def diurnal(options: TraceOptions, at: Floats, width: float, random: np.random.Generator) -> Floats:
    """Return a sine with its mean at `rate` and its maximum at `peak`, a quarter of the period after the start."""
    rate, period = options.number("rate"), options.seconds("period", DAY_S)
    peak = options.number("peak", 2 * rate)
    if peak > 2 * rate or peak < rate:
        raise options.error("peak", f"must be {rate:g} to {2 * rate:g}: the rate is the mean and never negative")
    return rate + (peak - rate) * np.sin(2 * np.pi * at / period)


def bursts(options: TraceOptions, at: Floats, width: float, random: np.random.Generator) -> Floats:
    """Return `rate`, and `burst` for `length` once `every`; the first begins half of that after the start."""
    rate, burst = options.number("rate", 0.0, above_zero=False), options.number("burst")
    every, length = options.seconds("every", 600.0), options.seconds("length", 10.0)
    return np.where((at + every / 2) % every < length, burst, rate)


def spikes(options: TraceOptions, at: Floats, width: float, random: np.random.Generator) -> Floats:
    """Return `rate` with peaks at random times, on average once `every`, each of which decays within `decay`."""
    rate, peak = options.number("rate", 0.0, above_zero=False), options.number("peak")
    every, decay = options.seconds("every", 3600.0), options.seconds("decay", 30.0)
    end = float(at[-1]) + width / 2
    starts = random.random(random.poisson(end / every)) * end
    rates = np.full(at.size, rate)
    for start in starts:
        first, last = np.searchsorted(at, (start, start + 10 * decay))
        rates[first:last] += peak * np.exp(-(at[first:last] - start) / decay)
    return rates


def on_off(options: TraceOptions, at: Floats, width: float, random: np.random.Generator) -> Floats:
    """Return `rate` in phases of the mean length `on`, and 0 in phases of the mean length `off`; both exponential."""
    rate, on, off = options.number("rate"), options.seconds("on", 60.0), options.seconds("off", 540.0)
    end = float(at[-1]) + width / 2
    phases = max(16, int(4 * end / (on + off)) + 64)
    changes = np.cumsum(np.stack([random.exponential(on, phases), random.exponential(off, phases)], axis=1).ravel())
    return np.where(np.searchsorted(changes, at) % 2 == 0, rate, 0.0)


GENERATORS: Final[Mapping[str, Rates]] = {
    "poisson": poisson, "diurnal": diurnal, "bursts": bursts, "spikes": spikes, "on-off": on_off,
}  # fmt: skip


def generate(name: str, options: TraceOptions) -> Trace | CountTrace:
    """Return the trace of a generator. `input` and `output`: means of tokens, which are geometrically distributed."""
    duration, seed = options.seconds("duration", 3600.0), options.number("seed", 0.0, above_zero=False)
    random = np.random.default_rng(int(seed))
    width = max(min(1.0, duration / 1000), duration / MAX_BUCKETS)
    buckets = max(1, round(duration / width))
    width = duration / buckets
    at = np.linspace(width / 2, duration - width / 2, buckets)
    rates = GENERATORS[name](options, at, width, random)
    tokens = [options.number(each, 0.0) for each in ("input", "output")]
    options.check_read()
    counts = random.poisson(rates * width)
    if counts.sum() > MAX_EXACT:
        seconds = max(1, round(1.0 / width))  # buckets of a second, or longer ones of very long traces
        counts = np.add.reduceat(counts, np.arange(0, buckets, seconds))
        given, made = (np.full(counts.size, mean) if mean else None for mean in tokens)
        return CountTrace(width * seconds, counts, None, given, made)
    arrivals = CountTrace(width, counts).expanded(int(seed)).arrivals
    given, made = (random.geometric(1 / max(mean, 1.0), arrivals.size) if mean else None for mean in tokens)
    return Trace(arrivals, None, given, made, duration=duration)
