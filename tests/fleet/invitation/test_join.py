"""A machine that has nothing but a token becomes a worker of the run, once, until it is revoked."""

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from echo_queue import failpoints
from echo_queue.cli.commands import app
from echo_queue.config.loading import load
from echo_queue.connections.connect import connect_redis, connect_store
from echo_queue.errors import EchoQueueError, ServiceError
from echo_queue.fleet.invitation.issuing import inviter_key
from echo_queue.fleet.invitation.register import worker_user
from echo_queue.fleet.invitation.token import TOKEN_DOMAIN, read_token, write_token
from echo_queue.queue import Caller, Chunk, Heartbeat, Outcome, PromptSet, TrustedWeights, WorkerQueue
from echo_queue.queue.keys import Keys
from echo_queue.records import PromptShard, Published, Version
from echo_queue.weights import Signer
from tests.fleet.invitation.conftest import Say, secrets_of
from tests.fleet.invitation.inviting_run import RUN, InvitingRun
from tests.killer import Killer
from tests.queue.clients import Clients
from tests.queue.queue_harness import group_of
from tests.servers.s3 import KEYS
from tests.servers.tls import certify
from tests.variables import variables_kept
from tests.waiting import wait_until
from workers.shutdown import Shutdown
from workers.weights.key_pinning import KeyChanged, pin

Invited = Callable[..., str]
ANOTHER = "ask whoever invited this machine"


@pytest.fixture
def refused(say: Say) -> Callable[..., str]:
    """Gives what a command says that is refused, with all that it says at once."""

    def why(*words: object) -> str:
        done = say(*words)
        assert isinstance(done.exception, EchoQueueError), done.output or done.exception
        return str(done.exception)

    return why


def listed(say: Say, run: InvitingRun, token: str) -> dict[str, str]:
    """Returns what `invitations` says of one."""
    entries = orjson.loads(say("invitations", run.config_file(), "--json").stdout_bytes)
    (found,) = [entry for entry in entries if entry["id"] == read_token(token).invitation.id]
    return dict(found)


def resigned(token: str, signer: Signer, **changes: object) -> str:
    """Returns the token with changes, signed by another key."""
    return write_token(read_token(token).invitation.model_copy(update=changes), signer)


@pytest.mark.slow
def test_an_invited_machine_leases_and_completes_with_a_workers_rights_until_it_is_revoked(
    say: Say, invited: Invited, run: InvitingRun, tmp_path: Path
) -> None:
    submitter, learner = (Clients.connected_as(run.config(), role) for role in ("submitter", "learner"))
    lineage = learner.resume().lineage
    version = Version(lineage, 0)
    learner.publish(lineage, Published(version, "manifest", "digest"))
    assert submitter.declare(PromptSet("a", "source"), [Chunk(0, 0, 4)])
    assert submitter.submit("a", 0, PromptShard("shard", 0, 4))
    token = invited("--name", "gpu-1")
    here = tmp_path / "here"
    assert listed(say, run, token)["state"] == "open"

    assert say("join", token, "--check", "--dir", here).exit_code == 0
    for path in (here, *here.iterdir()):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, "others may read what is there"
    entry = listed(say, run, token)
    assert (entry["name"], entry["state"], entry["host"]) == ("gpu-1", "claimed", os.uname().nodename)
    config = load(here / "run.toml")
    assert config.redis.username == worker_user(RUN, entry["id"])
    with secrets_of(here):
        assert not connect_store(config, "worker").exists("weights/none")
        worker, name = WorkerQueue(Caller.connect(config, "worker", 5.0)), f"gpu-1-{entry['id']}-0"
        first, second = worker.lease(name, version, 2).tasks
        worker.heartbeat(name, Heartbeat("engine", version, "idle"), every_s=60.0)
        assert worker.complete(name, [group_of(first, name, version)]) == [Outcome.accepted]
        for other_name in ("gpu-1", f"gpu-10-{entry['id']}-0", f"gpu-1-{'0' * 12}-0"):
            with pytest.raises(ServiceError, match="may not do that"):
                worker.lease(other_name, version, 1)
        with pytest.raises(ServiceError, match="may not do that"):
            Clients.connected_as(config, "worker", deadline_s=30.0).bury(second.id, "by hand")

    assert "the 1 task that its workers held is free for others" in say("revoke", run.config_file(), entry["id"]).stdout
    with pytest.raises(ServiceError, match="an invited worker's user is gone once it is revoked"):
        worker.renew(name, {second.id: 0})
    other = Caller.connect(run.config(), "worker", 5.0)
    assert second.id in {task.id for task in WorkerQueue(other).lease("other", version, 4).tasks}, "without a sweep"
    assert not learner.status().workers[1:], "only the other one is listed"
    assert listed(say, run, token)["state"] == "revoked"
    done = say("join", token, "--dir", here)
    assert f"invitation: {entry['id']} was revoked" in str(done.exception) and ANOTHER in str(done.exception)
    assert "was revoked before" in say("revoke", run.config_file(), entry["id"]).stdout


@pytest.mark.slow
def test_an_invitation_is_used_once_by_one_machine_which_may_come_again(
    say: Say, refused: Callable[..., str], invited: Invited, tmp_path: Path
) -> None:
    token = invited()
    assert say("join", token, "--check", "--dir", tmp_path / "a").exit_code == 0
    assert "was used already, by another machine" in refused("join", token, "--check", "--dir", tmp_path / "b")
    assert say("join", token, "--check", "--dir", tmp_path / "a").exit_code == 0
    next((tmp_path / "a").glob("*.grant")).unlink()  # the reply was lost
    assert say("join", token, "--check", "--dir", tmp_path / "a").exit_code == 0


@pytest.mark.slow
def test_what_invite_prints_joins_and_keeps_the_token_out_of_the_command_line(
    say: Say, run: InvitingRun, tmp_path: Path
) -> None:
    issued = say("invite", run.config_file())
    command = re.search("echo-queue (join .*)", issued.stderr)
    assert command is not None and issued.stdout.strip() not in issued.stderr
    words = (*command[1].split(), "--check", "--dir", str(tmp_path / "a"))
    with variables_kept():
        joined = CliRunner().invoke(app, words, input=issued.stdout)
    assert joined.exit_code == 0 and "standard input" not in joined.stderr, joined.output
    token = issued.stdout.strip()
    assert "everyone on this machine can read it" in say("join", token, "--check", "--dir", tmp_path / "a").stderr


@pytest.mark.slow
def test_a_machine_that_dies_after_any_step_of_joining_joins_when_it_is_told_again(
    say: Say, invited: Invited, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[str] = set()
    for last in range(1, 100):
        token, here = invited(), tmp_path / str(last)
        dying = Killer(last, KeyboardInterrupt)
        with monkeypatch.context() as patch:
            patch.setattr(failpoints, "observer", dying)
            ended = say("join", token, "--check", "--dir", here).exit_code
        seen |= set(dying.taken)
        if ended == 0:
            break
        assert say("join", token, "--check", "--dir", here).exit_code == 0, dying.taken
    assert seen == {"write invitation", "rename invitation", "claim grant", "read grant", "look at the bucket"}


@pytest.mark.slow
def test_an_invitation_that_expired_or_was_revoked_is_refused_and_its_users_are_gone(
    say: Say, refused: Callable[..., str], invited: Invited, run: InvitingRun, tmp_path: Path
) -> None:
    short, long = invited("--for", "1s"), invited()
    short_id, long_id = (read_token(token).invitation.id for token in (short, long))
    wait_until(lambda: listed(say, run, short)["state"] == "expired", "the end of an invitation")
    assert f"{short_id} expired at 20" in refused("join", short, "--check", "--dir", tmp_path / "a")
    say("revoke", run.config_file(), long_id)
    assert f"{long_id} was revoked" in refused("join", long, "--check", "--dir", tmp_path / "b")
    with connect_redis(run.config(), "admin") as admin:
        users = " ".join(admin.acl_users())
    assert short_id not in users and long_id not in users
    assert "is no invitation to run home" in refused("revoke", run.config_file(), "0" * 12)


def test_a_forged_token_is_refused_before_anything_is_sent_or_as_soon_as_redis_is_asked(
    refused: Callable[..., str], invited: Invited, run: InvitingRun, tmp_path: Path
) -> None:
    """The last forger was invited himself: his credentials are good, and he would have others use his own store."""
    token, forger = invited(), Signer(bytes(32), TOKEN_DOMAIN)
    elsewhere = resigned(token, forger, redis_url="rediss://localhost:1/0")
    trusted = inviter_key(run.config()).public_key
    said = refused("join", elsewhere, "--inviter", trusted)
    assert "which this machine was told to trust" in said and "Redis" not in said
    head, _, body = token.split(".")
    assert "is signed by the key" in refused("join", f"{head}.{forger.public_key}.{body}")
    settings = {"store": {"url": "http://127.0.0.1:1"}, "environment": {"kind": "math"}}
    said = refused("join", resigned(token, forger, settings=settings), "--dir", tmp_path / "a")
    assert "may not invite to run home" in said


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"redis_url": "redis://10.0.0.1:6379/0"}, "is not encrypted"),
        ({"settings": {"weights": {"cache_dir": "/"}}}, "sets weights.cache_dir"),
        (
            {"settings": {"environment": {"kind": "interactive", "function": "subprocess:Popen"}}},
            "would run subprocess:Popen here",
        ),
        (
            {"settings": {"environment": {"kind": "function", "rewards": {"a": {"function": "os:system"}}}}},
            "would run os:system here",
        ),
        (
            {"settings": {"environment": {"rewards": {"a": {"judge": {"url": "http://10.0.0.1"}}}}}},
            "key of judges to http://10.0.0.1",
        ),
    ],
)
def test_no_token_makes_a_machine_do_what_its_owner_did_not_say(
    refused: Callable[..., str], invited: Invited, tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    token = resigned(invited(), Signer(bytes(32), TOKEN_DOMAIN), **changes)
    assert words in refused("join", token, "--dir", tmp_path / "a")
    assert not (tmp_path / "a").exists(), "something was written"


@pytest.mark.slow
def test_no_password_goes_to_a_server_whose_certificate_is_of_another_authority(
    refused: Callable[..., str], invited: Invited, run: InvitingRun, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    certify(other)
    signer = inviter_key(run.config())
    token = resigned(invited(), signer, authority=(other / "authority.pem").read_text())
    said = refused("join", token, "--dir", tmp_path / "a")
    assert "has no certificate of the invitation's authority" in said and "somebody may be in between" in said


def test_weights_that_another_key_signs_are_refused_although_redis_names_that_key(
    say: Say, invited: Invited, run: InvitingRun, tmp_path: Path
) -> None:
    assert say("join", invited(), "--check", "--dir", tmp_path / "a").exit_code == 0
    config = load(tmp_path / "a" / "run.toml")
    with secrets_of(tmp_path / "a"):
        queue = TrustedWeights(Caller.connect(config, "worker", 5.0))
    assert pin(config, queue, Shutdown())
    key = Keys(RUN).run_keys
    with connect_redis(run.config(), "admin") as admin:
        before = admin.hget(key, "public_key")
        admin.hset(key, "public_key", "ab" * 32)
        try:
            with pytest.raises(KeyChanged, match=r"not with .*, weights.public_key"):
                pin(config, queue, Shutdown())
        finally:
            admin.hset(key, "public_key", before)


def test_all_that_a_machine_lacks_is_said_at_once_and_its_invitation_stays_open(
    say: Say, refused: Callable[..., str], invited: Invited, run: InvitingRun, tmp_path: Path
) -> None:
    signer = inviter_key(run.config())
    settings = {
        "store": {"url": "http://127.0.0.1:1"},
        "environment": {"kind": "function", "function": "nowhere:score"},
    }
    token = invited()
    lacking = resigned(token, signer, settings=settings, model_bytes=1 << 60)
    said = refused("join", lacking, "--inviter", signer.public_key, "--dir", tmp_path / "a")
    for words in ("there is no module nowhere", "GB left, and the model", "store.url: http://127.0.0.1:1 cannot be"):
        assert words in said
    assert listed(say, run, token)["state"] == "open"
    assert say("join", token, "--check", "--dir", tmp_path / "a").exit_code == 0


def test_a_machine_lends_its_own_keys_of_a_store_only_to_whom_it_trusts(
    say: Say, refused: Callable[..., str], run: InvitingRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for half in ("ACCESS", "SECRET"):
        for variable in (f"ECHO_QUEUE_WORKER_STORE_{half}_KEY", f"ECHO_QUEUE_STORE_{half}_KEY"):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS.secret_key)
    done = say("invite", run.config_file())
    assert "the invitation brings no keys of the store" in done.stderr
    words = ("join", done.stdout.strip(), "--check", "--dir", tmp_path / "a")
    assert "this machine's own would be used" in refused(*words)
    assert say(*words, "--inviter", inviter_key(run.config()).public_key).exit_code == 0


def test_a_run_to_which_nobody_can_come_says_what_to_set(
    say: Say, refused: Callable[..., str], run: InvitingRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded = {"redis": {"url": "embedded"}, "store": {"url": "embedded"}}
    said = refused("invite", run.config_file(**embedded))
    assert said.count("listens on 127.0.0.1, where no other machine can reach it") == 2
    plain = {"url": "redis://10.0.0.1:6379/0"}
    assert "passwords would be readable" in refused("invite", run.config_file(redis=plain))
    assert "write 90s, 30m, 24h or 7d" in refused("invite", run.config_file(), "--for", "soon")
    monkeypatch.delenv("ECHO_QUEUE_WORKER_STORE_ACCESS_KEY")
    monkeypatch.delenv("ECHO_QUEUE_WORKER_STORE_SECRET_KEY")
    assert "those of every role" in refused("invite", run.config_file())
