"""How published weights reach an engine: fetched and checked beside it, held in one host copy, swapped in at a gate."""
