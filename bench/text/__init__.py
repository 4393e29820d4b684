"""Text generation: tokens a second and time to the first token beside transformers' generate and llama.cpp."""
