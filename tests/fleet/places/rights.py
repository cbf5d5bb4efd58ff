"""The rights that the chart gives a controller, as the emulator enforces them. `make infra` compares both."""

RULES = (
    ("", "pods", frozenset({"get", "list", "patch", "delete"})),
    ("", "configmaps", frozenset({"get", "patch"})),
    ("apps", "deployments/scale", frozenset({"get", "patch"})),
)
"""API group, resource and verbs."""
