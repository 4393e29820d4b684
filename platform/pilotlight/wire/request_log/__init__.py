"""Request log: requests and responses of a service as CloudEvents, sent to a file, an HTTP server or S3."""
