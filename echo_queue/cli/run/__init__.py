"""What a run needs from its owner: the check of its file, its servers, its roles and its end."""
