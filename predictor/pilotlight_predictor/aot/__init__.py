"""Models compiled ahead of time: made once by torch, run by its C++ library alone, so that no start imports torch."""
