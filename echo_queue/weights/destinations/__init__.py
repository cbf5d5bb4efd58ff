"""Where a model's folder goes besides a disk: a folder of a bucket, and a repository of the Hugging Face hub."""
