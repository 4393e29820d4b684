"""Model repositories: what is on disk, what its configuration says, and which versions are to be served."""
