"""The Auto Scaling groups of infra/terraform/aws as groups of machines: pool POOL of run RUN is the group eq-RUN-POOL.

- An instance's tag has its machine's name; the group's tags have the names that wait for an instance, with the time.
- An instance is ended by its id, which lowers the size with it. A size is lowered without that only where instances
  are missing: then there is none that AWS could choose.
- AWS remembers the names of ended instances for about an hour, and takes 50 tags of a group: so many names may wait.

https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_TerminateInstanceInAutoScalingGroup.html
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from echo_queue import failpoints
from echo_queue.errors import Problem
from echo_queue.fleet.drivers.groups.aws_prices import Market, SpotPrices, market_of, spot_types
from echo_queue.fleet.drivers.groups.group import Changed, MachineGroup, Member
from echo_queue.fleet.drivers.protocol import DriverError, Quote

NAME = "echo-queue-machine"
WAITS, ENDED = "waits", "ended"
REMEMBERED = 10
"""The names that were taken back before they had an instance, of which a group keeps the latest."""
GONE = "terminated"
STAYING = ("pending", "running")
TRIES = 3
LINUX = ("Linux/UNIX", "Linux/UNIX (Amazon VPC)")
"""What AWS calls machines without a licence in the list of spot prices, in newer accounts and in old ones."""


class AutoScalingGroups:
    """The groups of a run's pools. `regions`: by pool. Credentials are those that boto3 finds."""

    def __init__(self, run: str, regions: Mapping[str, str], deadline_s: float) -> None:
        self._run = run
        self._regions = regions
        self._config = Config(
            connect_timeout=deadline_s,
            read_timeout=deadline_s,
            retries={"mode": "standard", "total_max_attempts": TRIES},
        )
        self._session = boto3.Session()  # its credentials are this driver's alone
        self._clients: dict[tuple[str, str], Any] = {}
        self._prices = SpotPrices(self._market)

    def pools(self) -> Sequence[str]:
        return tuple(self._regions)

    def read(self, pool: str) -> MachineGroup:
        found, notes = self._group(pool)
        states = {one["InstanceId"]: one["LifecycleState"] for one in found["Instances"]}
        instances = self._instances(pool)
        members = tuple(
            Member(one["InstanceId"], _name(one), leaving=_leaves(one, states.get(one["InstanceId"], "")))
            for one in instances
            if one["State"]["Name"] != GONE
        )
        waiting = sorted((said, name) for name, said in notes.items() if said.startswith(WAITS))
        return MachineGroup(
            pool=pool,
            size=found["DesiredCapacity"],
            members=members,
            waiting=tuple(name for _, name in waiting),
            used=(*notes, *map(_name, instances)),
            most=found["MaxSize"],
        )

    def price(self, pool: str) -> Quote:
        return self._prices.of(pool)

    def note(self, group: MachineGroup, waiting: Sequence[str]) -> MachineGroup:
        named = {member.name for member in group.members}
        gone = [name for name in group.waiting if name not in waiting]
        now = f"{time.time_ns() // 1_000_000}"
        written = {name: f"{WAITS} {now}" for name in waiting if name not in group.waiting}
        written |= {name: f"{ENDED} {now}" for name in gone if name not in named}
        removed = [name for name in gone if name in named]
        if any(said.startswith(ENDED) for said in written.values()):
            _, notes = self._group(group.pool)
            ended = sorted((said, name) for name, said in notes.items() if said.startswith(ENDED))
            removed += [name for _, name in ended[:-REMEMBERED]]
        failpoints.step("note machines", partial(self._write_notes, group.pool, written, removed), waiting)
        return replace(group, waiting=tuple(waiting), used=(*group.used, *waiting))

    def name(self, member: Member, group: MachineGroup) -> None:
        tags = [{"Key": NAME, "Value": member.name}]
        tag = partial(self._ask, group.pool, "ec2", "create_tags", Resources=[member.id], Tags=tags)
        failpoints.step("name machine", tag, member.name)

    def grow(self, group: MachineGroup, size: int) -> None:
        failpoints.step("start machine", partial(self._resize, group.pool, size), group.pool)

    def shrink(self, group: MachineGroup, members: Sequence[Member], size: int) -> None:
        for member in members:
            end = partial(
                self._ask,
                group.pool,
                "autoscaling",
                "terminate_instance_in_auto_scaling_group",
                InstanceId=member.id,
                ShouldDecrementDesiredCapacity=True,
            )
            failpoints.step("end machine", end, member.name)
        if size < group.size - len(members):
            failpoints.step("shrink pool", partial(self._resize, group.pool, size), group.pool)

    def _resize(self, pool: str, size: int) -> None:
        name = self._name_of(pool)
        self._ask(pool, "autoscaling", "set_desired_capacity", AutoScalingGroupName=name, DesiredCapacity=size)

    def _group(self, pool: str) -> tuple[Any, dict[str, str]]:
        """Returns the group as AWS describes it, and its notes by name."""
        name = self._name_of(pool)
        answer = self._ask(pool, "autoscaling", "describe_auto_scaling_groups", AutoScalingGroupNames=[name])
        if not answer["AutoScalingGroups"]:
            what = f"there is no Auto Scaling group {name} in {self._regions[pool]}"
            raise DriverError(Problem(f"pools.{pool}", what, "make it with infra/terraform/aws, or leave the pool out"))
        (found,) = answer["AutoScalingGroups"]
        prefix = f"{NAME}/"
        tags = {tag["Key"]: tag["Value"] for tag in found.get("Tags", ())}
        return found, {key.removeprefix(prefix): said for key, said in tags.items() if key.startswith(prefix)}

    def _instances(self, pool: str) -> list[Any]:
        """Returns the group's instances, oldest first, and those that have ended lately."""
        filters = [{"Name": "tag:aws:autoscaling:groupName", "Values": [self._name_of(pool)]}]
        answers = self._pages(pool, "describe_instances", Filters=filters)
        found = [
            one for answer in answers for reservation in answer["Reservations"] for one in reservation["Instances"]
        ]
        return sorted(found, key=lambda one: (one["LaunchTime"], one["InstanceId"]))

    def _market(self, pool: str) -> Market:
        """Returns the prices of now: AWS answers with those that held at the time from which one asks."""
        group, _ = self._group(pool)
        asked = {"InstanceTypes": spot_types(group), "ProductDescriptions": LINUX, "StartTime": datetime.now(UTC)}
        answers = self._pages(pool, "describe_spot_price_history", **asked) if asked["InstanceTypes"] else ()
        return market_of(group, [one for answer in answers for one in answer["SpotPriceHistory"]])

    def _pages(self, pool: str, call: str, **words: Any) -> Iterator[Any]:
        """Yields the answers of EC2 to a question, one page after the other."""
        more: dict[str, str] = {}
        while True:
            answer = self._ask(pool, "ec2", call, **words, **more)
            yield answer
            if not answer.get("NextToken"):
                return
            more = {"NextToken": answer["NextToken"]}

    def _write_notes(self, pool: str, written: Mapping[str, str], removed: Sequence[str]) -> None:
        group = {"ResourceId": self._name_of(pool), "ResourceType": "auto-scaling-group"}
        if written:
            tags = [
                {**group, "Key": f"{NAME}/{name}", "Value": said, "PropagateAtLaunch": False}
                for name, said in written.items()
            ]
            self._ask(pool, "autoscaling", "create_or_update_tags", Tags=tags)
        if removed:
            tags = [{**group, "Key": f"{NAME}/{name}"} for name in removed]
            self._ask(pool, "autoscaling", "delete_tags", Tags=tags)

    def _name_of(self, pool: str) -> str:
        return f"eq-{self._run}-{pool}"

    def _ask(self, pool: str, service: str, call: str, **words: Any) -> Any:
        """Raises `Changed` if an instance is gone, and `DriverError` for any other refusal."""
        key = service, self._regions[pool]
        try:
            if key not in self._clients:
                self._clients[key] = self._session.client(service, region_name=key[1], config=self._config)  # type: ignore[call-overload]
            ask: Callable[..., Any] = getattr(self._clients[key], call)
            return ask(**words)
        except ClientError as error:
            said = str(error)
            if "not found" in said or "NotFound" in said:
                raise Changed(Problem(f"pools.{pool}", said, "read it again")) from None
        except BotoCoreError as error:
            said = str(error)
        fix = "see whether its credentials have the rights of docs/fleet.md; it is asked again in the next turn"
        raise DriverError(Problem(f"pools.{pool}", said, fix))


def _name(instance: Any) -> str:
    names = [tag["Value"] for tag in instance.get("Tags", ()) if tag["Key"] == NAME]
    return str(names[0]) if names else ""


def _leaves(instance: Any, lifecycle: str) -> bool:
    return instance["State"]["Name"] not in STAYING or lifecycle.startswith("Terminat")
