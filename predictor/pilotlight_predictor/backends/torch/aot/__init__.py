"""Models compiled ahead of time by AOTInductor and run by torch's C++ library, without importing torch."""
