"""`echo-queue init`: a configuration that runs as it is, of a file of prompts."""
