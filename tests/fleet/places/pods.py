"""Pods of an emulated cluster as a place with machines."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from echo_queue.fleet.drivers import GroupDriver
from echo_queue.fleet.drivers.groups.kubernetes import Deployments
from echo_queue.fleet.drivers.groups.kubernetes_api import KubernetesApi
from tests.fleet.places.kubernetes_emulator import TOKEN, KubernetesEmulator
from tests.fleet.places.place import ENDLESS, POOLS, Place


class Pods(Place):
    def __init__(self, folder: Path, url: str, cluster: KubernetesEmulator) -> None:
        self.cluster = cluster
        self._url = url
        self._token = folder / "token"
        self._token.write_text(f"{TOKEN}\n")

    @classmethod
    @contextmanager
    def opened(cls, folder: Path, command: Sequence[str] = ENDLESS) -> Iterator[Self]:
        cluster = KubernetesEmulator("demo", dict.fromkeys(POOLS, 0))
        folder.mkdir(exist_ok=True)
        with cluster.serving() as url:
            yield cls(folder, url, cluster)

    def driver(self, *, notes: bool = True) -> GroupDriver:
        api = KubernetesApi(self._url, "runs", 30.0, token=self._token)
        return GroupDriver(Deployments(api, "demo", POOLS), notes=notes)

    def ever(self) -> int:
        return len(self.cluster.made)

    def running(self) -> int:
        return len(self.cluster.ready())
