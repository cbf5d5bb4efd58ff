"""The commands of `echo-queue`, as thin as they can be. Nearly all take the TOML file of a run first."""

import json
import logging
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from echo_queue import __version__
from echo_queue.cli.run.preflight import For
from echo_queue.config.loading import load
from echo_queue.errors import ConfigError
from echo_queue.launch.liveness import LivingRole
from echo_queue.launch.roles import become

if TYPE_CHECKING:
    from echo_queue.config import Config
    from echo_queue.connections.secrets import Role

app = typer.Typer(
    name="echo-queue",
    help="RL post-training over Redis streams and object storage: one learner, many workers, one staleness bound.",
    epilog="A command that takes CONFIG takes any of its keys as well, for this time: --learner.lr=1e-5",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
ONE_MACHINE, ROLES, INSPECT, PREPARE = "Everything on this machine", "One role", "Inspect and repair", "Before a run"
WORKERS = "Machines that join a run"

config_app = typer.Typer(help="Check a configuration without starting any process.", no_args_is_help=True)
app.add_typer(config_app, name="config", rich_help_panel=PREPARE)
weights_app = typer.Typer(help="List, verify, copy and remove published weights.", no_args_is_help=True)
app.add_typer(weights_app, name="weights", rich_help_panel=INSPECT)


ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="TOML file of the run.", show_default=False)]
WeightsVersion = Annotated[
    str, typer.Argument(metavar="VERSION", help="LINEAGE.NUMBER; default: the latest.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"echo-queue {__version__}")
        raise typer.Exit


def _living_role(role: str) -> str:
    """Checks the role here, because the help would break the list of a type's values within a word."""
    if role not in get_args(LivingRole):
        raise typer.BadParameter(f"{role!r} is none of {', '.join(get_args(LivingRole))}")
    return role


def options_of(commands: typer.Typer) -> set[str]:
    """Returns the options of all commands, as they are written."""

    def found(command: Any) -> Iterator[str]:
        for parameter in command.params:
            yield from parameter.opts
            yield from parameter.secondary_opts
        for one in getattr(command, "commands", {}).values():
            yield from found(one)

    return {"--help", *found(typer.main.get_command(commands))}


@app.callback()
def main(
    _: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Takes the options that stand before a command."""


@app.command(rich_help_panel=ONE_MACHINE)
def run(config: ConfigFile) -> None:
    """Run all roles of CONFIG on this machine until all prompts are trained: services, submission, workers, learner.

    A run that was stopped or killed continues. For a finished run, the command prints where its report is.
    """
    from echo_queue.cli.run.start import run as run_all

    raise typer.Exit(run_all(config))


@app.command(rich_help_panel=ROLES)
def services(
    config: ConfigFile,
    within_run: Annotated[
        bool, typer.Option("--within-run", help="Leave what the queue says last to `run`, which keeps it.", hidden=True)
    ] = False,
) -> None:
    """Serve the embedded Redis and object store until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S")
    if within_run:
        from echo_queue.launch.servers import serve

        serve(load(config))
    else:
        from echo_queue.cli.run.services import serve_alone

        serve_alone(load(config))


@app.command(rich_help_panel=ROLES)
def submit(
    config: ConfigFile,
    source: Annotated[
        str,
        typer.Argument(
            help="A file, a folder, s3://BUCKET/KEY, hf:NAME, or a generated set with its options: "
            "'reasoning-gym:chain_sum {\"seed\": 1, \"size\": 500}', 'module:function {…}'; default: prompts.source."
        ),
    ] = "",
    name: Annotated[str, typer.Option("--set", help="Name of the set; default: prompts.set.")] = "",
    within_run: Annotated[
        bool, typer.Option("--within-run", help="Wait for the learner; leave a set that has arrived whole as it is.")
    ] = False,
) -> None:
    """Send a prompt set to the Celery workers, and wait until it is in the backlog. Sending it again adds nothing."""
    from echo_queue.cli.run.submit import submit_set

    submit_set(load(config), source or None, name or None, within_run=within_run)


def _refuse_wrong_password(config: "Config", role: "Role") -> None:
    """Raises `ServiceError` before the role imports torch, which takes seconds."""
    from echo_queue.connections.connect import require_users

    require_users(config, role)


@app.command(rich_help_panel=ROLES)
def worker(
    config: ConfigFile,
    name: Annotated[str, typer.Option(help="Name of this worker; default: host and process id.")] = "",
) -> None:
    """Run a rollout worker: it leases tasks, generates samples, scores them, and completes the groups."""
    _refuse_wrong_password(load(config), "worker")
    become("workers", config, *(("--name", name) if name else ()))


@app.command(rich_help_panel=ROLES)
def join(
    token: Annotated[
        str, typer.Argument(metavar="TOKEN", help="What `invite` printed; - reads it from stdin.", show_default=False)
    ],
    *,
    inviter: Annotated[
        str, typer.Option(envvar="ECHO_QUEUE_INVITER", help="The only key whose tokens to accept.", show_default=False)
    ] = "",
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Number of workers; default: one on each GPU, or one on CPUs.", show_default=False),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Folder of this machine; default: joined/RUN-ID.", show_default=False)
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Check and claim, and start no worker.")] = False,
) -> None:
    """Make this machine's GPUs workers of the run that TOKEN names: check it, claim the invitation once, and start.

    The workers are kept alive until the run is finished; when the command is ended, they hand their tasks back.
    """
    from echo_queue.cli.join.join import join as join_run

    join_run(token, folder, inviter=inviter, workers=workers, check=check)


@app.command(rich_help_panel=ROLES)
def notices(
    config: ConfigFile,
    file: Annotated[Path, typer.Argument(help="The file that this machine's workers watch.", show_default=False)],
) -> None:
    """Write the spot notices of this machine to FILE, for workers in containers. rollout.preemption names the cloud."""
    load(config)
    become("workers.preemption.relay", config, str(file))


@app.command(rich_help_panel=ROLES)
def learner(config: ConfigFile) -> None:
    """Run the learner: it drains groups within S, updates the model, and publishes and checkpoints its weights."""
    from echo_queue.capacity.estimate import refusals

    loaded = load(config)
    if problems := tuple(refusals(loaded)):
        raise ConfigError(*problems)
    _refuse_wrong_password(loaded, "learner")
    become("learner", config)


@app.command(rich_help_panel=ROLES)
def fleet(
    config: ConfigFile,
    file: Annotated[
        Path | None, typer.Argument(metavar="FLEET", help="TOML file of the fleet.", show_default=False)
    ] = None,
    *,
    act: Annotated[bool, typer.Option("--act", help="Start and dismiss machines, and not only say which.")] = False,
    pause: Annotated[bool, typer.Option("--pause", help="Make the leader order nothing, and end.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Undo --pause, and end.")] = False,
    as_json: Json = False,
) -> None:
    """Rent and dismiss machines so that the learner of CONFIG is busy at the least price. FLEET has pools and caps.

    Without FLEET: who leads the fleet, how many machines of each pool it wants, and why. With --json and FLEET, each
    decision is a line of JSON, with all that it rests on.
    """
    from echo_queue.cli.plan import fleet as commands

    if pause or resume:
        commands.pause(config, paused=pause)
    elif file is None:
        commands.show(config, as_json=as_json)
    else:
        commands.control(config, file, act=act, as_json=as_json)


@app.command(rich_help_panel=PREPARE)
def prepare(config: ConfigFile) -> None:
    """Make a Redis and an object store of your own ready for the run, and end: once, as user admin. It changes nothing
    if it is done again.

    It checks both servers, loads the queue's functions, creates the run, and says which roles have no Redis user yet.
    """
    from echo_queue.cli.run.prepare import prepare_servers

    prepare_servers(load(config))


@app.command("redis-users", rich_help_panel=PREPARE)
def redis_users(config: ConfigFile) -> None:
    """Print the ACL file for a Redis of your own: a user for each role, with the digest of its password.

    The passwords come from ECHO_QUEUE_WORKER_REDIS_PASSWORD and so on, or from the file that ..._FILE names.
    """
    from echo_queue.cli.run.redis_users import print_acl_file

    print_acl_file(load(config))


@app.command(rich_help_panel=WORKERS)
def invite(
    config: ConfigFile,
    name: Annotated[str, typer.Option(help="Name of the worker; default: the invitation's id.")] = "",
    valid: Annotated[str, typer.Option("--for", help="How long it can be claimed: 90s, 30m, 24h or 7d.")] = "24h",
) -> None:
    """Print a token with which one machine, once, can become a worker of CONFIG's run, as a Redis user of its own."""
    from echo_queue.cli.join.invite import invite as invite_worker

    invite_worker(load(config), name, valid)


@app.command(rich_help_panel=WORKERS)
def invitations(config: ConfigFile, as_json: Json = False) -> None:
    """List the invitations to CONFIG's run: open, claimed, expired or revoked, and since when."""
    from echo_queue.cli.join.invite import list_invitations

    list_invitations(load(config), as_json=as_json)


@app.command(rich_help_panel=WORKERS)
def revoke(
    config: ConfigFile,
    id: Annotated[str, typer.Argument(metavar="ID", help="Of the invitation.", show_default=False)],
) -> None:
    """Take an invited worker's rights away and end its connections. Others continue what it holds."""
    from echo_queue.cli.join.invite import revoke as revoke_invitation

    revoke_invitation(load(config), id)


@app.command("init-model", rich_help_panel=PREPARE)
def init_model(config: ConfigFile) -> None:
    """Build the base model of CONFIG, a small Qwen3 warmed up on the task's format. A model built before is kept."""
    load(config)
    become("learner.base_model", config)


@app.command(rich_help_panel=PREPARE)
def estimate(
    config: ConfigFile,
    *,
    model_config: Annotated[
        Path | None, typer.Option(help="The model's config.json; default: that of model.base.", show_default=False)
    ] = None,
    device: Annotated[
        str, typer.Option(help="h200, h100, a100, l40s, 4090 or cpu; default: by learner.device.", show_default=False)
    ] = "",
    devices: Annotated[
        int | None, typer.Option(help="Number of devices of the learner; default: learner.ranks.", show_default=False)
    ] = None,
    mfu: Annotated[
        float | None,
        typer.Option(
            help="Share of the device's rate that training reaches; default: 0.35, on a CPU 0.7.", show_default=False
        ),
    ] = None,
    link_gbit: Annotated[float, typer.Option(help="Rate of each machine's link, in Gbit/s.")] = 1.0,
    tokens_per_s: Annotated[
        float | None, typer.Option(help="Rate of one sample; default: rollout.tokens_per_s.", show_default=False)
    ] = None,
    mean_tokens: Annotated[
        int | None, typer.Option(help="Length of the mean sample; default: model.max_new_tokens.", show_default=False)
    ] = None,
    change: Annotated[float, typer.Option(help="Share of the bfloat16 values that an update changes.")] = 0.01,
    as_json: Json = False,
) -> None:
    """Reckon memory, bytes, times and the lag of CONFIG from its model's config.json. Nothing is loaded or started."""
    from echo_queue.capacity.estimate import Assumptions
    from echo_queue.cli.plan.estimate import show as show_estimate

    assumed = Assumptions(device, devices, mfu, link_gbit, tokens_per_s, mean_tokens, change)
    show_estimate(load(config), model_config, assumed, as_json=as_json)


@app.command(rich_help_panel=PREPARE)
def plan(
    fleet: Annotated[Path, typer.Argument(metavar="FLEET", help="TOML file of the fleet.", show_default=False)],
    *,
    on: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%d"], help="The day on which prices are judged; default: today.", show_default=False
        ),
    ] = None,
    pools: Annotated[
        Path | None, typer.Option(help="Write the pools file that Terraform's module reads.", show_default=False)
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the cost of an update against S into this SVG.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Plan which machines of FLEET to rent for its learner, and say what an update costs. Nothing is started."""
    from echo_queue.cli.plan.fleet_plan import show as show_plan

    show_plan(fleet, (on or datetime.now()).date(), as_json=as_json, pools=pools, picture=plot)


@app.command("simulate", rich_help_panel=PREPARE)
def simulate_fleet(
    fleet: Annotated[Path, typer.Argument(metavar="FLEET", help="TOML file of the fleet.", show_default=False)],
    bounds: Annotated[
        str, typer.Option("--s", help="Bounds S to compare, such as 2,4,8; default: that of FLEET.", show_default=False)
    ] = "",
    seed: Annotated[int, typer.Option(min=0, help="Seed of all that is drawn.")] = 0,
    as_json: Json = False,
) -> None:
    """Simulate how busy a fleet keeps a learner, how old its data is, what is lost, and what an update costs."""
    from echo_queue.cli.plan.simulate import show as show_simulation

    show_simulation(fleet, bounds, seed=seed, as_json=as_json)


@app.command(rich_help_panel=INSPECT)
def status(
    config: ConfigFile,
    watch: Annotated[bool, typer.Option("--watch", help="Keep the display up to date until the run ends.")] = False,
    as_json: Json = False,
) -> None:
    """Show reward, version, lag, queue depths and workers. The command reads with the read-only user."""
    from echo_queue.cli.inspect.status import show

    show(load(config), watch=watch, as_json=as_json)


@app.command(rich_help_panel=INSPECT)
def show(
    config: ConfigFile,
    task: Annotated[str, typer.Argument(help="Id of a task: set/epoch/index; default: the newest group.")] = "",
    as_json: Json = False,
) -> None:
    """Show a group's samples: the prompt, each turn, the versions of the weights, and the rewards."""
    from echo_queue.cli.inspect.show import show as show_group

    show_group(load(config), task or None, as_json=as_json)


@app.command(rich_help_panel=INSPECT)
def audit(config: ConfigFile, as_json: Json = False) -> None:
    """Check that submitted = backlog + tasks + replay + trained + dead. The exit code is 1 if it does not hold."""
    from echo_queue.cli.inspect.audit import audit as check

    raise typer.Exit(check(load(config), as_json=as_json))


@app.command(rich_help_panel=INSPECT)
def metrics(
    config: ConfigFile,
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve them at /metrics until SIGTERM. Without HOST on loopback; any other needs "
            "ECHO_QUEUE_METRICS_TOKEN.",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Print the figures of the run for Prometheus, or serve them: from Redis alone, as the read-only user.

    `echo-queue figures` says what each of them means.
    """
    from echo_queue.cli.inspect.metrics import print_once, serve

    loaded = load(config)
    if listen:
        serve(loaded, listen)
    else:
        raise typer.Exit(print_once(loaded))


@app.command(rich_help_panel=INSPECT)
def healthy(
    role: Annotated[
        str,
        typer.Argument(
            metavar="ROLE",
            help="services, submission (Celery), worker, learner or controller.",
            show_default=False,
            callback=_living_role,
        ),
    ],
) -> None:
    """Check that the processes of ROLE on this machine live and their engines answer. If not, the exit code is 1."""
    from echo_queue.launch.liveness import unhealthy

    if trouble := unhealthy(cast(LivingRole, role)):
        typer.echo(trouble)
        raise typer.Exit(1)
    typer.echo(f"{role} lives")


@app.command("eval", rich_help_panel=INSPECT)
def evaluate(
    config: ConfigFile,
    model: Annotated[
        str,
        typer.Argument(
            metavar="[MODEL]",
            help="final (the run's model), base, a version (1.12; 12 is that of the newest lineage), a model folder "
            "(./12 is never a version) or a hub name.",
        ),
    ] = "final",
    *,
    name: Annotated[
        str,
        typer.Option(
            help="The only [\\[evaluation]]; default: all. With --source: that, or a component, as which it is asked.",
            show_default=False,
        ),
    ] = "",
    source: Annotated[
        str,
        typer.Option(
            help="Prompts instead, as of `submit`; \\[environment] scores them, or that of --name.", show_default=False
        ),
    ] = "",
    samples: Annotated[
        int | None, typer.Option(min=1, help="Answers to each prompt; default: as configured.", show_default=False)
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="0 is greedy; default: as configured.", show_default=False)
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Ask the first so many prompts of each set.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File of the answers; default: in evals/ in run.dir.", show_default=False)
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Another model's file: compare prompt by prompt.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Answer held-out prompts with one model on this machine, without learner or queue, and print the figures.

    When it was ended or killed, the same command goes on. Only a version not fetched before needs the run's services.
    """
    from echo_queue.cli.inspect.evaluate import evaluate as evaluate_model

    options = {"name": name, "source": source, "samples": samples, "temperature": temperature, "limit": limit}
    evaluate_model(config, load(config), model, out, options | {"against": against, "json": as_json})


@app.command(rich_help_panel=INSPECT)
def export(
    config: ConfigFile,
    version: Annotated[
        str,
        typer.Argument(
            metavar="VERSION",
            help="1.12 (12: that of the newest lineage), final, best (of the run's evaluation) or base.",
            show_default=False,
        ),
    ],
    target: Annotated[
        str,
        typer.Argument(
            metavar="DIR", help="The folder to write, or s3://BUCKET/PREFIX; optional with --push.", show_default=False
        ),
    ] = "",
    *,
    adapter: Annotated[bool, typer.Option("--adapter", help="Only the LoRA adapters, as PEFT's folder.")] = False,
    push: Annotated[
        str, typer.Option(metavar="OWNER/NAME", help="Push it to the Hugging Face hub, private.", show_default=False)
    ] = "",
    public: Annotated[bool, typer.Option("--public", help="Let --push make a public repository.")] = False,
    within_run: Annotated[
        bool, typer.Option("--within-run", help="Fetch with the learner's rights, as the learner does.", hidden=True)
    ] = False,
) -> None:
    """Write a version as a Hugging Face folder: weights, tokenizer, chat template, generation settings, model card.

    With LoRA the adapters are merged into the base model. The folder is whole or is not there, wherever it goes.

    The hub's token is that of HF_TOKEN, or of `hf auth login`.
    """
    from echo_queue.cli.inspect.export import Destination
    from echo_queue.cli.inspect.export import export as export_model

    destination = Destination(target, push, public)
    export_model(config, load(config), version, destination, adapter=adapter, within_run=within_run)


@app.command(rich_help_panel=INSPECT)
def revive(
    config: ConfigFile,
    tasks: Annotated[list[str] | None, typer.Argument(help="Ids of tasks; default: all that failed.")] = None,
) -> None:
    """Give tasks that are dead, or that failed before, all their attempts again."""
    from echo_queue.cli.inspect.dead_tasks import revive as revive_tasks

    revive_tasks(load(config), tasks or [])


@app.command(rich_help_panel=INSPECT)
def bury(
    config: ConfigFile,
    task: Annotated[str, typer.Argument(help="Id of the task: set/epoch/index.", show_default=False)],
    reason: Annotated[str, typer.Option(help="The reason that is recorded with the dead task.")] = "by hand",
) -> None:
    """Give up a task that keeps workers busy for nothing. `revive` undoes it."""
    from echo_queue.cli.inspect.dead_tasks import bury as bury_task

    bury_task(load(config), task, reason)


@app.command(rich_help_panel=INSPECT)
def reinstate(
    config: ConfigFile,
    workers: Annotated[list[str], typer.Argument(help="Names of suspended workers.", show_default=False)],
) -> None:
    """Let workers lease again that the learner has suspended because of the bad groups that they sent."""
    from echo_queue.cli.inspect.dead_tasks import reinstate as reinstate_workers

    reinstate_workers(load(config), workers)


@app.command(rich_help_panel=INSPECT)
def rewind(
    config: ConfigFile,
    checkpoint: Annotated[
        str, typer.Argument(help="Name of a checkpoint; default: list them all.", show_default=False)
    ] = "",
) -> None:
    """Go back to an older checkpoint while no learner runs. Prompts trained after it are trained again."""
    load(config)
    become("learner.recovery.rewind", config, *filter(None, [checkpoint]))


@app.command(rich_help_panel=INSPECT)
def schema() -> None:
    """Print the JSON Schema of the documents that commands print with --json."""
    from echo_queue.cli.documents import schemas

    typer.echo(json.dumps(schemas(), indent=2, ensure_ascii=False))


@app.command(rich_help_panel=INSPECT)
def figures() -> None:
    """Print what each figure of `metrics` means, what is normal and what to do, as Markdown."""
    from echo_queue.reporting.figures.page import page

    typer.echo(page(), nl=False)


@app.command(rich_help_panel=INSPECT)
def report(config: ConfigFile) -> None:
    """Write report.html, and TensorBoard files if the configuration asks for them, from the recorded metrics."""
    from echo_queue.cli.inspect.report import write

    typer.echo(write(load(config)))


@app.command(rich_help_panel=PREPARE)
def init(
    *,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="Prompts: a file, a folder, s3://BUCKET/KEY or hf:NAME, as in prompts.source."
        ),
    ] = "",
    model: Annotated[str, typer.Option(help="A model's folder, or a hub model as OWNER/NAME.")] = "",
    reward: Annotated[str, typer.Option(help="math, or your own as module:function.")] = "",
    prompt: Annotated[str, typer.Option(help="Column of the prompts, if it cannot be guessed.")] = "",
    answer: Annotated[str, typer.Option(help="Column of the answers, if it cannot be guessed.")] = "",
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("run.toml"),
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing: take what is suggested.")] = False,
) -> None:
    """Write a configuration for the prompts in FILE that runs as it is. Nothing is overwritten."""
    from echo_queue.cli.init.init import Given
    from echo_queue.cli.init.init import init as write_configuration

    write_configuration(Given(file, model, reward, prompt, answer, yes), out)


@config_app.command("check")
def config_check(
    config: ConfigFile,
    role: Annotated[
        For,
        typer.Option("--for", metavar="ROLE", help="What this machine is to do: run, worker, learner or submitter."),
    ] = For.run,
    as_json: Json = False,
) -> None:
    """Report all that is wrong with CONFIG here: keys, model, packages, environment, prompts, services.

    The exit code is 2 if anything is.
    """
    from echo_queue.cli.run.config import check

    raise typer.Exit(check(config, role, as_json=as_json))


@config_app.command("reference")
def config_reference() -> None:
    """Print every key with its type, default and meaning, as Markdown."""
    from echo_queue.cli.run.config import reference

    typer.echo(reference(), nl=False)


@weights_app.command("ls")
def weights_ls(config: ConfigFile, as_json: Json = False) -> None:
    """List the versions in the store, and the routes that lead to each."""
    from echo_queue.cli.inspect.weights import ls

    ls(load(config), as_json=as_json)


@weights_app.command("show")
def weights_show(config: ConfigFile, version: WeightsVersion = "", as_json: Json = False) -> None:
    """Show a version's manifest, once its signature is verified."""
    from echo_queue.cli.inspect.weights import show as show_version

    show_version(load(config), version, as_json=as_json)


@weights_app.command("verify")
def weights_verify(config: ConfigFile, version: WeightsVersion = "") -> None:
    """Read every route to a version, and check every digest. The exit code is 1 if one is wrong."""
    from echo_queue.cli.inspect.weights import verify

    raise typer.Exit(verify(load(config), version))


@weights_app.command("fetch")
def weights_fetch(
    config: ConfigFile,
    version: WeightsVersion = "",
    to: Annotated[
        Path | None, typer.Option(help="The file to write; default: weights-VERSION.safetensors in run.dir.")
    ] = None,
) -> None:
    """Write a version as a safetensors file."""
    from echo_queue.cli.inspect.weights import fetch

    typer.echo(fetch(load(config), version, to))


@weights_app.command("gc")
def weights_gc(
    config: ConfigFile,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be removed.")] = False,
) -> None:
    """Remove versions that no worker can need. A running learner does so itself; use this after it has died."""
    from echo_queue.cli.inspect.weights import gc

    gc(load(config), dry_run=dry_run)
