"""Weight transfer to a GPU without a framework, so that it runs while one is imported."""
