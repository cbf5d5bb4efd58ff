"""An API server with a ReplicaSet controller: what the driver of Kubernetes meets, and nothing else of Kubernetes.

- Objects have resourceVersions; a patch that rests on an older one is refused with 409. What a role's rights do not
  cover is refused with 403, and a call without the token with 401.
- After each request the controllers take a turn: pods appear `lag` turns after they are wanted, wait for a node as long
  as there is none (`nodes`), are ready two turns later, and end `lag` turns after they are deleted.
- A group that shrinks takes pods in the order of the ReplicaSet controller: those without a node, then those that are
  not ready, then by deletion cost, then the youngest.

https://github.com/kubernetes/kubernetes/blob/master/pkg/controller/controller_utils.go (ActivePodsWithRanks)
"""

import itertools
import json
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from tests.fleet.places.rights import RULES
from tests.http_server import Asked, Reply, serving

TOKEN = "t0ken"
COST = "controller.kubernetes.io/pod-deletion-cost"
READY_AFTER = 2


class Refused(Exception):
    """The answer to a request that fails: status and message."""


@dataclass
class Pod:
    """A pod. `born`, `placed`, `ended`: the turns in which it was made, got a node, was deleted."""

    name: str
    deployment: str
    born: int
    version: int
    annotations: dict[str, str] = field(default_factory=dict)
    placed: int | None = None
    ended: int | None = None


@dataclass
class Deployment:
    replicas: int
    version: int
    wanted_since: int = 0


class KubernetesEmulator:
    """`release`'s Deployments of these pools in namespace `runs`, each with `replicas` pods to begin with."""

    def __init__(self, release: str, pools: Mapping[str, int], *, lag: int = 1, nodes: int = 1000) -> None:
        self.release = release
        self.lag = lag
        self.nodes = nodes
        self.made: list[str] = []
        self.requests = 0
        self.refusals: list[tuple[str, int]] = []
        """Answers to come instead of the real ones: (method, or "" for any; status)."""
        self.interferes = 0
        """Requests to change a size before which somebody else changes the object."""
        self._turn = 0
        self._versions = itertools.count(100)
        self._letters = itertools.count()
        self.deployments = {
            f"{release}-worker-{pool}": Deployment(count, next(self._versions)) for pool, count in pools.items()
        }
        self.notes = {name: ({}, next(self._versions)) for name in self.deployments}
        self.pods: dict[str, Pod] = {}
        self._lock = threading.Lock()

    def serving(self) -> AbstractContextManager[str]:
        """Serves until the end of the context, which is the URL of the API server."""
        return serving(self._reply)

    def _reply(self, asked: Asked) -> Reply:
        status, document = self.ask(asked)
        return Reply(status, json.dumps(document).encode(), {"Content-Type": "application/json"})

    def ask(self, asked: Asked) -> tuple[int, object]:
        """Returns the answer to a request, after which the controllers take a turn."""
        with self._lock:
            self.requests += 1
            try:
                answer = 200, self._answer(asked)
            except Refused as refused:
                status, message = refused.args
                answer = status, {"kind": "Status", "status": "Failure", "code": status, "message": message}
            self.controllers_turn()
            return answer

    def controllers_turn(self) -> None:
        """Pods are made, placed, ended and removed, as far as it is time."""
        self._turn += 1
        for pod in list(self.pods.values()):
            if pod.ended is not None and self._turn - pod.ended > self.lag:
                del self.pods[pod.name]
        placed = sum(pod.placed is not None for pod in self.pods.values())
        for pod in self.pods.values():
            if pod.placed is None and pod.ended is None and placed < self.nodes:
                pod.placed, placed = self._turn, placed + 1
        for name, deployment in self.deployments.items():
            active = [pod for pod in self.pods.values() if pod.deployment == name and pod.ended is None]
            if len(active) == deployment.replicas:
                deployment.wanted_since = self._turn
            elif self._turn - deployment.wanted_since >= self.lag:
                for _ in range(deployment.replicas - len(active)):
                    self._make(name)
                for pod in sorted(active, key=self._rank)[: max(0, len(active) - deployment.replicas)]:
                    pod.ended = self._turn
                deployment.version = next(self._versions)  # its status has changed

    def lose(self, pod: str) -> None:
        """A node goes, and the pod with it."""
        with self._lock:
            del self.pods[pod]

    def ready(self) -> list[str]:
        """Returns the names of the pods that are ready and not deleted."""
        with self._lock:
            return [pod.name for pod in self.pods.values() if self._ready(pod) and pod.ended is None]

    def _make(self, deployment: str) -> None:
        name = f"{deployment}-7d4b9c-{next(self._letters):05x}"
        self.pods[name] = Pod(name, deployment, self._turn, next(self._versions))
        self.made.append(name)

    def _ready(self, pod: Pod) -> bool:
        return pod.placed is not None and self._turn - pod.placed >= READY_AFTER

    def _rank(self, pod: Pod) -> tuple[bool, bool, int, int]:
        return pod.placed is not None, self._ready(pod), int(pod.annotations.get(COST, "0")), -pod.born

    # Requests ---------------------------------------------------------------------------------------------------------

    def _answer(self, asked: Asked) -> object:
        method = asked.method
        if asked.headers.get("authorization") != f"Bearer {TOKEN}":
            raise Refused(401, "Unauthorized")
        for refusal in self.refusals:
            if refusal[0] in ("", method):
                self.refusals.remove(refusal)
                raise Refused(refusal[1], "the server has received too many requests")
        core, apps = "/api/v1/namespaces/runs/", "/apis/apps/v1/namespaces/runs/"
        prefix, group = (core, "") if asked.path.startswith(core) else (apps, "apps")
        resource, _, rest = asked.path.removeprefix(prefix).partition("/")
        name, _, part = rest.partition("/")
        verb = {"GET": "get" if name else "list", "PATCH": "patch", "DELETE": "delete"}.get(method, method.lower())
        kind = f"{resource}/{part}" if part else resource
        if not any(group == one and kind == named and verb in verbs for one, named, verbs in RULES):
            raise Refused(403, f'{kind} is forbidden: User "controller" cannot {verb} resource "{kind}"')
        if method == "PATCH" and asked.headers.get("content-type") != "application/merge-patch+json":
            raise Refused(415, "the body of the request was in an unknown format")
        changes = json.loads(asked.body) if method == "PATCH" else None
        match kind:
            case "pods" if verb == "list":
                return self._list(asked.query["labelSelector"])
            case "pods":
                return self._pod(name, changes, deleted=verb == "delete")
            case "configmaps":
                return self._configmap(name, changes)
            case _:
                return self._scale(name, changes)

    def _list(self, selector: str) -> object:
        labels = dict(one.split("=") for one in selector.split(","))
        assert labels.pop("app.kubernetes.io/instance") == self.release
        deployment = f"{self.release}-{labels.pop('app.kubernetes.io/component')}"
        assert not labels
        return {"kind": "PodList", "items": [self._shown(p) for p in self.pods.values() if p.deployment == deployment]}

    def _shown(self, pod: Pod) -> object:
        metadata: dict[str, Any] = {"name": pod.name, "resourceVersion": str(pod.version)}
        metadata["creationTimestamp"] = f"2026-01-01T00:{pod.born // 60 % 60:02}:{pod.born % 60:02}Z"
        if pod.annotations:
            metadata["annotations"] = pod.annotations
        if pod.ended is not None:
            metadata["deletionTimestamp"] = "2026-01-01T01:00:00Z"
        if pod.placed is None:
            return {"metadata": metadata, "status": {"phase": "Pending"}}
        containers = [{"name": "worker", "ready": self._ready(pod)}]
        return {"metadata": metadata, "status": {"phase": "Running", "containerStatuses": containers}}

    def _pod(self, name: str, changes: Any, *, deleted: bool) -> object:
        if name not in self.pods:
            raise Refused(404, f'pods "{name}" not found')
        pod = self.pods[name]
        if deleted:
            pod.ended = self._turn if pod.ended is None else pod.ended
        else:
            assert [*changes, *changes["metadata"]] == ["metadata", "annotations"], "nothing else is patched"
            pod.annotations |= changes["metadata"]["annotations"]
            pod.version = next(self._versions)
        return self._shown(pod)

    def _configmap(self, name: str, changes: Any) -> object:
        if name not in self.notes:
            raise Refused(404, f'configmaps "{name}" not found')
        data, version = self.notes[name]
        if changes:
            self._fresh(name, changes, version)
            data, version = {**data, **changes["data"]}, next(self._versions)
            self.notes[name] = data, version
        metadata = {"name": name, "resourceVersion": str(version)}
        return {"kind": "ConfigMap", "metadata": metadata, **({"data": data} if data else {})}

    def _scale(self, name: str, changes: Any) -> object:
        if name not in self.deployments:
            raise Refused(404, f'deployments.apps "{name}" not found')
        deployment = self.deployments[name]
        if changes:
            if self.interferes:
                self.interferes -= 1
                deployment.version = next(self._versions)
            self._fresh(name, changes, deployment.version)
            deployment.replicas, deployment.version = changes["spec"]["replicas"], next(self._versions)
            deployment.wanted_since = self._turn
        spec = {"replicas": deployment.replicas} if deployment.replicas else {}
        return {"kind": "Scale", "metadata": {"resourceVersion": str(deployment.version)}, "spec": spec}

    def _fresh(self, name: str, changes: Any, version: int) -> None:
        if changes["metadata"]["resourceVersion"] != str(version):
            raise Refused(409, f'Operation cannot be fulfilled on "{name}": the object has been modified')
