"""Auto Scaling and EC2 as moto plays them, behind a double that refuses and delays what moto lets through.

- A size above the group's maximum is refused, and so are a second end of an instance, the 51st tag of a group, an
  action without a right, and, as often as `throttles` says, any request.
- Instances come up `lag` requests after they were asked for, as far as there is `capacity`, and end `lag` requests
  after that was asked for. Until then their group calls them Terminating. One that has ended is still described, with
  its tags.
- Spot prices are those of `spot`, and moto's of all other types and zones are left out. The price that each had a year
  ago is answered as well.
- A size below the number of instances ends some of AWS's own choice: `own_choice` counts them.
"""

import copy
import os
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import parse_qsl
from xml.etree import ElementTree

import boto3
import urllib3

from tests.http_server import Asked, Reply, serving

REGION = "eu-central-1"
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
RIGHTS = (
    *("DescribeAutoScalingGroups", "SetDesiredCapacity", "TerminateInstanceInAutoScalingGroup"),
    *("CreateOrUpdateTags", "DeleteTags", "DescribeInstances", "CreateTags", "DescribeSpotPriceHistory"),
)
"""The actions that docs/fleet.md gives a controller."""
MOST_TAGS = 50
AUTOSCALING = "http://autoscaling.amazonaws.com/doc/2011-01-01/"


TYPES, ZONES = ("g4dn.xlarge", "g5.xlarge"), (f"{REGION}a", f"{REGION}b")
"""The instance types and the zones of each group."""


class Spot(NamedTuple):
    """A spot price in USD per hour, and how long ago it was set."""

    usd_per_hour: float
    age_s: float = 0.0


class Refused(Exception):
    """The answer to a request that fails: AWS's code and message."""


@cache
def moto_url() -> str:
    """Starts moto's server, which ends with this process, and returns its address."""
    os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Silent(WSGIRequestHandler):
        def log(self, type: str, message: str, *args: object) -> None:
            pass

    application = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Silent)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


@cache
def moto(service: str) -> Any:
    """Returns a client that speaks to moto itself."""
    return boto3.client(
        service, region_name=REGION, endpoint_url=moto_url(), aws_access_key_id="key", aws_secret_access_key="secret"
    )  # type: ignore[call-overload]


class AwsDouble:
    """The groups `names` of at most `most` machines, which are empty. `on_demand`: the share that is, in percent."""

    def __init__(
        self, names: tuple[str, ...], *, most: int = 10, lag: int = 2, capacity: int = 1000, on_demand: int = 0
    ) -> None:
        self.most = most
        self.lag = lag
        self.capacity = capacity
        self.throttles = 0
        self.spot: dict[tuple[str, str], Spot] = {}
        self.forbidden: set[str] = set()
        self.own_choice = 0
        self.made: set[str] = set()
        self.asked = dict.fromkeys(names, 0)
        self.actions: list[str] = []
        self._changed = dict.fromkeys(names, 0)
        self._leaving: dict[str, tuple[str, int]] = {}
        self._ended: dict[str, list[ElementTree.Element]] = {name: [] for name in names}
        self._instances: dict[str, list[str]] = {name: [] for name in names}
        self._turn = 0
        self._lock = threading.Lock()
        self._http = urllib3.PoolManager()
        policy = _mixed_policy(f"{names[0]}-template", on_demand)
        for name in names:
            moto("autoscaling").create_auto_scaling_group(
                AutoScalingGroupName=name, MixedInstancesPolicy=policy, MinSize=0, MaxSize=most,
                DesiredCapacity=0, AvailabilityZones=ZONES,
            )  # fmt: skip

    def serving(self) -> AbstractContextManager[str]:
        """Serves until the end of the context, which is the address of the double."""
        return serving(self._reply)

    def _reply(self, asked: Asked) -> Reply:
        status, text = self.ask(asked.headers, asked.body)
        return Reply(status, text, {"Content-Type": "text/xml"})

    def ask(self, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        """Returns the answer to a request, after which instances come up and end as far as it is time."""
        words = dict(parse_qsl(body.decode()))
        with self._lock:
            self.actions.append(words["Action"])
            try:
                answer = 200, self._answer(words, headers, body)
            except Refused as refused:
                answer = 400, _error(*refused.args, ec2="/ec2/" in headers["authorization"])
            self._advance()
            return answer

    def lose(self, instance: str) -> None:
        """AWS takes an instance back, and will put another one in its place."""
        with self._lock:
            self._leaving[instance] = (self._group_of(instance), self._turn)

    def running(self) -> list[str]:
        """Returns the ids of the instances that are up and not about to end."""
        with self._lock:
            return [one for name in self.asked for one in self._active(name)]

    # Requests ---------------------------------------------------------------------------------------------------------

    def _answer(self, words: Mapping[str, str], headers: Mapping[str, str], body: bytes) -> bytes:
        action = words["Action"]
        if action not in RIGHTS or action in self.forbidden:
            raise Refused("AccessDenied", f"not authorized to perform: {action}")
        if self.throttles:
            self.throttles -= 1
            raise Refused("Throttling", "Rate exceeded")
        match action:
            case "SetDesiredCapacity":
                return self._resize(words["AutoScalingGroupName"], int(words["DesiredCapacity"]))
            case "TerminateInstanceInAutoScalingGroup":
                return self._end(words["InstanceId"], smaller=words["ShouldDecrementDesiredCapacity"] == "true")
            case "CreateOrUpdateTags":
                self._count_tags(words)
        forwarded = {key: value for key, value in headers.items() if key not in ("host", "content-length")}
        answer = self._http.request("POST", moto_url(), headers=forwarded, body=body, retries=False, timeout=60.0)
        assert answer.status == 200, answer.data
        if action == "DescribeAutoScalingGroups":
            return self._with_sizes(answer.data)
        if action == "DescribeSpotPriceHistory":
            assert "StartTime" in words, "without it all prices of 90 days are the answer"
            return self._with_spot(answer.data)
        return self._with_ended(answer.data, words) if action == "DescribeInstances" else answer.data

    def _resize(self, name: str, size: int) -> bytes:
        if size > self.most:
            what = f"New SetDesiredCapacity value {size} is above max value {self.most} for the AutoScalingGroup."
            raise Refused("ValidationError", what)
        self.own_choice += max(0, len(self._active(name)) - size)
        self.asked[name], self._changed[name] = size, self._turn
        return _document("SetDesiredCapacityResponse")

    def _end(self, instance: str, *, smaller: bool) -> bytes:
        if instance in self._leaving:
            raise Refused("ScalingActivityInProgress", f"{instance} is terminating")
        group = self._group_of(instance)
        self._leaving[instance] = group, self._turn
        self.asked[group] -= smaller
        result = "TerminateInstanceInAutoScalingGroup"
        activity = "<Activity><ActivityId>1</ActivityId><StatusCode>InProgress</StatusCode></Activity>"
        return _document(f"{result}Response", f"<{result}Result>{activity}</{result}Result>")

    def _count_tags(self, words: Mapping[str, str]) -> None:
        name = words["Tags.member.1.ResourceId"]
        found = moto("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
        keys = {tag["Key"] for tag in found[0]["Tags"]} | {said for key, said in words.items() if key.endswith(".Key")}
        if len(keys) > MOST_TAGS:
            raise Refused("LimitExceeded", f"cannot create more than {MOST_TAGS} tags for {name}")

    def _with_sizes(self, answer: bytes) -> bytes:
        """Returns the description of groups with the sizes that were asked for, and with what is about to end."""
        root, space = ElementTree.fromstring(answer), "{*}"
        for group in root.findall(f".//{space}AutoScalingGroups/{space}member"):
            _text(group, f"{space}DesiredCapacity").text = str(self.asked[_said(group, f"{space}AutoScalingGroupName")])
            for one in group.findall(f"{space}Instances/{space}member"):
                if _said(one, f"{space}InstanceId") in self._leaving:
                    _text(one, f"{space}LifecycleState").text = "Terminating"
        return ElementTree.tostring(root)

    def _with_spot(self, answer: bytes) -> bytes:
        """Returns the price history with the prices of `spot` in place of moto's."""
        root = ElementTree.fromstring(answer)
        history = _text(root, "{*}spotPriceHistorySet")
        for one in list(history):
            history.remove(one)
            words = [_said(one, f"{{*}}{word}") for word in ("instanceType", "availabilityZone")]
            if spot := self.spot.get((words[0], words[1])):
                for usd, age_s in ((100.0, spot.age_s + 365 * 86_400.0), spot):
                    history.append(_priced(one, usd, datetime.now(UTC) - timedelta(seconds=age_s)))
        return ElementTree.tostring(root)

    def _with_ended(self, answer: bytes, words: Mapping[str, str]) -> bytes:
        """Returns the description of instances with those that have ended."""
        root = ElementTree.fromstring(answer)
        _text(root, "{*}reservationSet").extend(self._ended[words["Filter.1.Value.1"]])
        return ElementTree.tostring(root)

    # What happens by itself -------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        self._turn += 1
        for instance, (group, since) in list(self._leaving.items()):
            if self._turn - since > self.lag:
                self._ended[group].append(_terminated(instance))
                moto("autoscaling").terminate_instance_in_auto_scaling_group(
                    InstanceId=instance, ShouldDecrementDesiredCapacity=True
                )
                del self._leaving[instance]
                self._look(group)
        for name, asked in self.asked.items():
            active = self._active(name)
            more = min(asked, self.capacity) - len(active)
            if more == 0:
                self._changed[name] = self._turn
            elif self._turn - self._changed[name] > self.lag:
                size = len(self._instances[name]) + more
                moto("autoscaling").set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=size)
                self._look(name)
                self.made |= set(self._active(name))

    def _look(self, name: str) -> None:
        """Looks at what moto has done to a group."""
        (found,) = moto("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
        self._instances[name] = [one["InstanceId"] for one in found["Instances"]]

    def _active(self, name: str) -> list[str]:
        return [one for one in self._instances[name] if one not in self._leaving]

    def _group_of(self, instance: str) -> str:
        for name in self.asked:
            if instance in self._instances[name]:
                return name
        raise Refused("ValidationError", f"Instance Id not found - No managed instance found for {instance}")


def _mixed_policy(template: str, on_demand: int) -> Any:
    """Returns the policy of groups as infra/terraform has them, and makes their launch template."""
    data = {"ImageId": "ami-12c6146b", "InstanceType": TYPES[0]}
    made = moto("ec2").create_launch_template(LaunchTemplateName=template, LaunchTemplateData=data)
    specification = {"LaunchTemplateId": made["LaunchTemplate"]["LaunchTemplateId"], "Version": "$Latest"}
    overrides = [{"InstanceType": one} for one in TYPES]
    return {
        "InstancesDistribution": {"OnDemandBaseCapacity": 0, "OnDemandPercentageAboveBaseCapacity": on_demand},
        "LaunchTemplate": {"LaunchTemplateSpecification": specification, "Overrides": overrides},
    }


def _priced(entry: ElementTree.Element, usd: float, at: datetime) -> ElementTree.Element:
    """Returns a copy of an entry of the price history with this price, set at that time."""
    entry = copy.deepcopy(entry)
    _text(entry, "{*}spotPrice").text = f"{usd:.6f}"
    _text(entry, "{*}timestamp").text = at.isoformat()
    return entry


def _terminated(instance: str) -> ElementTree.Element:
    """Returns the description of an instance that has ended, with the tags that it had."""
    (found,) = moto("ec2").describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"]
    tags = "".join(f"<item><key>{t['Key']}</key><value>{t['Value']}</value></item>" for t in found.get("Tags", ()))
    state = "<instanceState><code>48</code><name>terminated</name></instanceState>"
    told = f"<instanceId>{instance}</instanceId>{state}<launchTime>{found['LaunchTime'].isoformat()}</launchTime>"
    text = f"<instancesSet><item>{told}<tagSet>{tags}</tagSet></item></instancesSet>"
    return ElementTree.fromstring(f"<item><reservationId>r-0</reservationId>{text}</item>")


def _document(name: str, inside: str = "") -> bytes:
    metadata = "<ResponseMetadata><RequestId>0</RequestId></ResponseMetadata>"
    return f'<{name} xmlns="{AUTOSCALING}">{inside}{metadata}</{name}>'.encode()


def _error(code: str, message: str, *, ec2: bool) -> bytes:
    error = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    if ec2:
        return f"<Response><Errors>{error}</Errors><RequestID>0</RequestID></Response>".encode()
    return f'<ErrorResponse xmlns="{AUTOSCALING}">{error}<RequestId>0</RequestId></ErrorResponse>'.encode()


def _text(parent: ElementTree.Element, tag: str) -> ElementTree.Element:
    found = parent.find(tag)
    assert found is not None, tag
    return found


def _said(parent: ElementTree.Element, tag: str) -> str:
    return _text(parent, tag).text or ""
