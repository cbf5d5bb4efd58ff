"""Prints who says on this machine that it will be taken away, as `rollout.preemption.watch` names it."""

import json
import os

WATCHED = ("aws", "gcp", "azure")

cloud = json.loads(os.environ.get("SKYPILOT_CLUSTER_INFO", "{}")).get("cloud", "").lower()
print(cloud if cloud in WATCHED else "none")
