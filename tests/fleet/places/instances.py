"""Instances of an account of AWS, as a double plays it, as a place with machines."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest

from echo_queue.fleet.drivers import GroupDriver
from echo_queue.fleet.drivers.groups.aws import AutoScalingGroups
from tests.fleet.places.aws_double import KEYS, REGION, AwsDouble
from tests.fleet.places.place import ENDLESS, POOLS, Place


class Instances(Place):
    def __init__(self, run: str, cloud: AwsDouble) -> None:
        self.run = run
        self.cloud = cloud
        self._groups = self.groups(dict.fromkeys(POOLS, REGION))

    @classmethod
    @contextmanager
    def opened(cls, folder: Path, command: Sequence[str] = ENDLESS, *, on_demand: int = 0) -> Iterator[Self]:
        run = uuid.uuid4().hex[:8]
        cloud = AwsDouble(tuple(f"eq-{run}-{pool}" for pool in POOLS), on_demand=on_demand)
        with cloud.serving() as url, pytest.MonkeyPatch.context() as patched:
            for name, value in {**KEYS, "AWS_ENDPOINT_URL": url}.items():
                patched.setenv(name, value)
            yield cls(run, cloud)

    def groups(self, regions: Mapping[str, str]) -> AutoScalingGroups:
        return AutoScalingGroups(self.run, regions, 60.0)

    def driver(self, *, notes: bool = True) -> GroupDriver:
        return GroupDriver(self._groups, notes=notes)

    def ever(self) -> int:
        return len(self.cloud.made)

    def running(self) -> int:
        return len(self.cloud.running())
