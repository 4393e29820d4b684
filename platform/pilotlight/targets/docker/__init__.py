"""Docker target: replicas of the embedded platform as containers of this machine's daemon."""
