"""The laboratory's figures, and that it leaves nothing behind however it ends."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from benchmarks import broadcast
from benchmarks.laboratory import system
from benchmarks.laboratory.figures import Arrival, Late, Outcome, Uploaded, series, spread
from benchmarks.laboratory.network import LOCK, MEMORY, PREFIX, Network, address_of, namespace_of, shaping
from benchmarks.laboratory.scenarios import FROZEN
from benchmarks.laboratory.system import CommandError, run
from echo_queue.file_lock import is_locked
from tests.waiting import wait_until

MODULE = (sys.executable, "-m", "benchmarks.broadcast")
QUICK = ("--quick", "--only", "store", "--megabytes", "4")
BUILT_S = 60.0
ENDED_S = 120.0


def arrival(name: str, seconds: float, wrong: int = 0) -> Arrival:
    return Arrival(name, seconds, cpu_s=0.5, rss_mb=80.0, store_bytes=0, peer_bytes=100, wrong=wrong)


FAST = Outcome((arrival("n1", 9.0), arrival("n2", 10.0)), origin_bytes=101, busy=0.5)
SLOW = Outcome((arrival("n1", 11.0), arrival("n2", 14.0)), origin_bytes=103, busy=0.7)


def test_the_ratio_is_that_of_the_last_node_to_the_bound() -> None:
    found = series("peers", [FAST, SLOW, FAST], size=100, bound_s=10.0)
    assert (found.ratio.median, found.ratio.least, found.ratio.most) == (1.0, 1.0, 1.4)
    assert (found.nodes, found.origin.most) == (2, 1.03)
    assert (found.cpu_share, found.cores) == (0.05, 0.1)


def test_nodes_that_do_not_count_still_count_when_their_parts_are_wrong() -> None:
    spoiled = replace(FAST, arrivals=(arrival("n1", 9.0), arrival("n2", 99.0, wrong=2)))
    found = series("corrupting peer", [spoiled], 100, 10.0, names=("n1",))
    assert (found.ratio.median, found.wrong_parts) == (0.9, 2)


def test_a_spread_of_one_value_is_that_value() -> None:
    assert spread([2.0]) == spread([2.0, 2.0, 2.0][:1])
    assert str(spread([1.0, 3.0, 2.0])) == " 2.000  (1.000 … 3.000, 3)"


def test_links_are_shaped_to_the_rate_in_bits_per_second() -> None:
    words = shaping("eth0", 400)
    assert words[:4] == ("qdisc", "replace", "dev", "eth0")
    assert words[words.index("rate") + 1] == "400000000bit"


def test_every_node_has_an_address_of_its_own() -> None:
    assert len({address_of(place) for place in range(250)}) == 250
    with pytest.raises(ValueError, match="addresses for 250"):
        address_of(250)


def late(ratio: float, wrong: int = 0) -> Late:
    return Late(4, 220.0, spread([ratio]), spread([1.0]), spread([0.0]), spread([0.5]), wrong)


def uploaded(behind: float, origin: float = 1.0) -> Uploaded:
    return Uploaded("uploaded, announced", 4, 100.0, spread([1.2]), spread([behind]), spread([origin]), 0)


def figures(**changes: object) -> broadcast.Figures:
    """All promises kept: 4 peers in 1.04 F/B of 10 s, and troubles that cost 10 % and a deadline at most."""
    peers = replace(series("peers", [FAST], 100, 10.0), nodes=4, ratio=spread([1.04]))
    killed = replace(peers, what="relay killed at 50 %", ratio=spread([1.64]))
    frozen = replace(peers, what=FROZEN, ratio=spread([1.29]))
    apart = replace(peers, what="two regions", ratio=spread([9.0]))
    found = broadcast.Figures(
        machine="2 processors",
        others_busy=0.0,
        mbit=400.0,
        goodput_mbit=382.0,
        hops_mbit=381.0,
        megabytes=200.0,
        bound_s=10.0,
        baselines=(),
        peers=(peers,),
        trouble=(killed, apart, frozen),
        late=late(1.05),
        uploads=(uploaded(0.2),),
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def test_promises_that_are_kept_are_said_to_be() -> None:
    targets = broadcast.targets_of(figures(), timed=True)
    assert len(targets) == 9
    assert all(targets.values())


@pytest.mark.parametrize(
    ("promise", "changes"),
    [
        ("every delivered part", {"late": late(1.0, wrong=1)}),
        ("T_last at most 1.05 F/B with 4 peers", {"peers": (replace(figures().peers[0], ratio=spread([1.06])),)}),
        ("relay killed", {"trouble": (replace(figures().trouble[0], ratio=spread([1.66])),)}),
        ("relay frozen", {"trouble": (replace(figures().trouble[2], ratio=spread([1.31])),)}),
        ("per region", {"trouble": (replace(figures().trouble[1], origin=spread([1.06])),)}),
        ("a worker that joins late", {"late": late(1.11)}),
        ("after the pointer has moved", {"uploads": (uploaded(0.26),)}),
        ("uploaded, announced: origin", {"uploads": (uploaded(0.2, origin=1.06),)}),
    ],
)
def test_a_promise_that_is_missed_is_said_to_be(promise: str, changes: dict[str, object]) -> None:
    targets = broadcast.targets_of(figures(**changes), timed=True)
    assert [kept for said, kept in targets.items() if promise in said] == [False]


def test_a_short_form_promises_nothing_about_time() -> None:
    tardy = replace(figures().peers[0], ratio=spread([5.0]))
    assert all(broadcast.targets_of(figures(peers=(tardy,)), timed=False).values())


def test_without_root_it_says_so_and_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert broadcast.main([]) == 0
    assert capsys.readouterr().out.startswith("skipped: network namespaces need root")


def test_a_missing_program_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "")
    assert any("apt-get install iperf3 iproute2" in reason for reason in system.missing())


# With a real laboratory -----------------------------------------------------------------------------------------------


@pytest.fixture
def able(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Skips the test where no laboratory can be built, waits for its turn, and sees to it that none is left.

    A machine has one laboratory at a time, so the processes of a test session take turns.
    """
    if reasons := system.missing():
        pytest.skip("; ".join(reasons))
    with (tmp_path_factory.getbasetemp().parent / "laboratory").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield
        assert remains() == []


def remains() -> list[str]:
    listed = [line.split()[0] for line in run("ip", "netns", "list").splitlines() if line.startswith(PREFIX)]
    return listed + [str(path) for path in MEMORY.glob(f"{PREFIX}*")]


@pytest.mark.slow
@pytest.mark.usefixtures("able")
def test_a_link_carries_its_rate_and_no_more() -> None:
    from benchmarks.laboratory.goodput import goodput

    with Network() as network:
        network.add("left", 50)
        network.add("right", 50)
        found = goodput(network, [("left", "right")], 2.0)[0] * 8 / 1e6
    assert 45 < found < 50


@pytest.mark.slow
@pytest.mark.usefixtures("able")
def test_there_is_one_laboratory_at_a_time() -> None:
    with Network(), pytest.raises(CommandError, match="another laboratory"), Network():
        pass


@pytest.mark.slow
@pytest.mark.usefixtures("able")
def test_the_last_line_holds_figures_targets_and_whether_all_is_well(tmp_path: Path) -> None:
    done = subprocess.run((*MODULE, "--json", *QUICK), capture_output=True, text=True, timeout=ENDED_S, check=False)
    assert done.returncode == 0, done.stderr
    verdict = orjson.loads(done.stdout.splitlines()[-1])
    assert verdict["ok"] is True
    assert verdict["figures"]["baselines"][0]["ratio"]["median"] > 3.5, "four nodes share the origin's link"


@pytest.mark.slow
@pytest.mark.usefixtures("able")
def test_four_peers_read_the_store_once_whoever_dies_or_lies() -> None:
    few = ("--json", "--quick", "--only", "peers,killed,corrupting", "--megabytes", "8")
    done = subprocess.run((*MODULE, *few), capture_output=True, text=True, timeout=ENDED_S, check=False)
    verdict = orjson.loads(done.stdout.splitlines()[-1])
    assert verdict["ok"] is True, done.stderr
    assert [each["what"] for each in verdict["figures"]["trouble"]] == ["relay killed at 50 %", "corrupting peer"]


@pytest.mark.slow
@pytest.mark.usefixtures("able")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_remains_after_a_signal(number: signal.Signals) -> None:
    process = begun()
    process.send_signal(number)
    assert process.wait(ENDED_S) != 0
    assert remains() == []


@pytest.mark.slow
@pytest.mark.usefixtures("able")
def test_what_a_killed_laboratory_left_is_swept_by_the_next() -> None:
    process = begun()
    process.kill()
    process.wait(ENDED_S)
    wait_until(lambda: not is_locked(LOCK), "a child that the killed process was starting")
    assert namespace_of("n1") in remains()
    with Network():
        assert namespace_of("n1") not in remains()


def begun() -> "subprocess.Popen[bytes]":
    """A laboratory at work, which hears signals even where this process was started to ignore SIGINT, as by `&`."""
    command = ("env", "--default-signal=INT", *MODULE, *QUICK)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: list(MEMORY.glob(f"{PREFIX}*/run*/*.log")), "a laboratory at work", BUILT_S)
    return process
