"""Model repositories: files on disk, model configurations, and the versions to serve."""
