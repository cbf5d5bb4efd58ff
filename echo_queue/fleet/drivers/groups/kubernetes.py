"""The Deployments of the chart as groups: pool POOL of release RELEASE is the Deployment RELEASE-worker-POOL.

- A pod's annotation has its machine's name; the ConfigMap with the Deployment's name has the names that wait for a pod.
- Each change carries the resourceVersion that it rests on, and the API server refuses it if there is a newer one.
- A ReplicaSet that shrinks first takes pods that wait for a node or are not ready, whatever their deletion cost. So a
  pod gets a name only once it is ready, and a pod that is to end is deleted by its name besides.

https://kubernetes.io/docs/concepts/workloads/controllers/replicaset/#pod-deletion-cost
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import orjson
from pydantic import AliasPath, BaseModel, Field, ValidationError

from echo_queue import failpoints
from echo_queue.errors import Problem
from echo_queue.fleet.drivers.groups.group import MachineGroup, Member
from echo_queue.fleet.drivers.groups.kubernetes_api import KubernetesApi
from echo_queue.fleet.drivers.protocol import DriverError, Quote

CORE, APPS = "api/v1", "apis/apps/v1"
NAME = "echo-queue/machine"
COST, LEAST = "controller.kubernetes.io/pod-deletion-cost", "-2147483648"
REMEMBERED = 500
"""The names of a pool that are kept after they were used, so that none is used twice. A ConfigMap holds 1 MiB."""
ENDED = ("Succeeded", "Failed")

T = TypeVar("T", bound=BaseModel)


class _Notes(BaseModel):
    waiting: tuple[str, ...] = ()
    used: tuple[str, ...] = ()


class _ConfigMap(BaseModel):
    version: str = Field(validation_alias=AliasPath("metadata", "resourceVersion"))
    notes: str = Field("{}", validation_alias=AliasPath("data", "machines"))


class _Scale(BaseModel):
    version: str = Field(validation_alias=AliasPath("metadata", "resourceVersion"))
    replicas: int = Field(0, validation_alias=AliasPath("spec", "replicas"))


class _Container(BaseModel):
    ready: bool = False


class _Pod(BaseModel):
    name: str = Field(validation_alias=AliasPath("metadata", "name"))
    created: str = Field(validation_alias=AliasPath("metadata", "creationTimestamp"))
    annotations: dict[str, str] = Field(default={}, validation_alias=AliasPath("metadata", "annotations"))
    deleted: str | None = Field(None, validation_alias=AliasPath("metadata", "deletionTimestamp"))
    phase: str = Field("Pending", validation_alias=AliasPath("status", "phase"))
    containers: tuple[_Container, ...] = Field((), validation_alias=AliasPath("status", "containerStatuses"))

    def member(self) -> Member:
        ready = self.phase == "Running" and bool(self.containers) and all(one.ready for one in self.containers)
        marked = self.annotations.get(COST) == LEAST
        return Member(self.name, self.annotations.get(NAME, ""), ready, marked, leaving=self.deleted is not None)


class _Pods(BaseModel):
    items: tuple[_Pod, ...] = ()


class Deployments:
    """The Deployments of these pools of a release."""

    def __init__(self, api: KubernetesApi, release: str, pools: Sequence[str]) -> None:
        self._api = api
        self._release = release
        self._pools = tuple(pools)

    def pools(self) -> Sequence[str]:
        return self._pools

    def read(self, pool: str) -> MachineGroup:
        """The size is read before the pods: if it is changed later, its version tells."""
        name = self._deployment(pool)
        notes = self._parsed(_ConfigMap, self._api.get(CORE, f"configmaps/{name}"))
        scale = self._parsed(_Scale, self._api.get(APPS, f"deployments/{name}/scale"))
        labels = {"app.kubernetes.io/instance": self._release, "app.kubernetes.io/component": f"worker-{pool}"}
        query = {"labelSelector": ",".join(f"{key}={value}" for key, value in labels.items())}
        found = self._parsed(_Pods, self._api.get(CORE, "pods", query)).items
        pods = sorted((one for one in found if one.phase not in ENDED), key=lambda one: (one.created, one.name))
        noted = self._parsed(_Notes, notes.notes.encode())
        return MachineGroup(
            pool=pool,
            size=scale.replicas,
            members=tuple(pod.member() for pod in pods),
            waiting=noted.waiting,
            used=noted.used,
            versions=(notes.version, scale.version),
        )

    def price(self, pool: str) -> Quote:
        """Returns none: a cluster does not know what its nodes cost."""
        return Quote()

    def note(self, group: MachineGroup, waiting: Sequence[str]) -> MachineGroup:
        path = f"configmaps/{self._deployment(group.pool)}"
        used = (*group.used, *(name for name in waiting if name not in group.used))[-REMEMBERED:]
        notes = orjson.dumps({"waiting": list(waiting), "used": used}).decode()
        changes = {"metadata": {"resourceVersion": group.versions[0]}, "data": {"machines": notes}}
        answer = failpoints.step("note machines", partial(self._api.patch, CORE, path, changes), waiting)
        versions = (self._parsed(_ConfigMap, answer).version, group.versions[1])
        return replace(group, waiting=tuple(waiting), used=used, versions=versions)

    def name(self, member: Member, group: MachineGroup) -> None:
        changes = {"metadata": {"annotations": {NAME: member.name}}}
        failpoints.step("name machine", partial(self._api.patch, CORE, f"pods/{member.id}", changes), member.name)

    def grow(self, group: MachineGroup, size: int) -> None:
        failpoints.step("start machine", partial(self._scale, group, size), group.pool)

    def shrink(self, group: MachineGroup, members: Sequence[Member], size: int) -> None:
        changes = {"metadata": {"annotations": {COST: LEAST}}}
        for member in members:
            path = f"pods/{member.id}"
            failpoints.step("mark machine", partial(self._api.patch, CORE, path, changes), member.name)
        if size < group.size:
            failpoints.step("shrink pool", partial(self._scale, group, size), group.pool)
        for member in members:
            failpoints.step("end machine", partial(self._api.delete, CORE, f"pods/{member.id}"), member.name)

    def _scale(self, group: MachineGroup, size: int) -> None:
        changes = {"metadata": {"resourceVersion": group.versions[1]}, "spec": {"replicas": size}}
        self._api.patch(APPS, f"deployments/{self._deployment(group.pool)}/scale", changes)

    def _deployment(self, pool: str) -> str:
        return f"{self._release}-worker-{pool}"

    def _parsed(self, form: type[T], answer: bytes) -> T:
        try:
            return form.model_validate_json(answer)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            what = f"{form.__name__.strip('_')} is unreadable, at {where}: {first['msg'].lower()}"
            raise DriverError(Problem("kubernetes", what, "see who else writes it")) from None
