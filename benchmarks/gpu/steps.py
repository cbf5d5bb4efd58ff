"""The steps of `benchmarks.gpu`, in their order: what the machine can do, what is right, what is fast, then a real run.

`python -m benchmarks.gpu.steps NAME ROWS [--fake]` is one of those that are not another benchmark. Each function yields
its rows; `fake`: with tiny shapes, on a CPU as well.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean, median
from xml.etree import ElementTree

from benchmarks.gpu.runner import Card, Step, card, host_gb

Row = dict[str, object]
LARGE_GB = 130.0
"""A card with as much memory trains 8B in one piece, a smaller one 4B."""
TESTS = "tests/learner/model/test_gpu.py"
SMALL_MIX, LONG_MIX = "256+3840", "7168+1024"
RISE = 0.2
"""What the mean reward must gain in a run."""
WITHOUT_REPORT = (
    "-c",
    "from echo_queue.reporting import results; results.problem = lambda _: None;"
    "results.write = lambda config, *_, **__: config.run.dir; from echo_queue.cli import main; main()",
)
"""A run that draws no report, for a machine without matplotlib."""


def steps(rows: Path, here: Card, *, fake: bool) -> list[Step]:
    """Returns all steps for this GPU. Their limits leave room for a slow start, and are more than all of them need."""

    def own(name: str, timeout_s: float, **needs: float) -> Step:
        return Step(name, _command("benchmarks.gpu.steps", name, str(rows), fake=fake), timeout_s, **needs)

    def learner(
        name: str, timeout_s: float, *options: str, mix: str, shape: str, baselines: Sequence[str] = (), **needs: float
    ) -> Step:
        chosen = ["--shapes", "fake", "--micro-tokens", "256"] if fake else ["--shapes", shape, *options]
        ways = ["--ways", "ours", *baselines]
        chosen += ["--mixes", {SMALL_MIX: "8+24", LONG_MIX: "24+8"}[mix] if fake else mix, *ways, "--repeats", "1"]
        chosen += [] if name == "small" else ["--no-stages"]
        command = _command("benchmarks.learner", "--rows", str(rows), *chosen, fake=fake)
        return Step(name, command, timeout_s, **({} if fake else needs))

    whole = here.total_gb > LARGE_GB
    large, micro, room = ("8B", "8192", LARGE_GB) if whole else ("4B", "16384", 70.0)

    def compiled(name: str, what: str) -> Step:
        options = ["--micro-tokens", micro, "--compile", what]
        return learner(name, 110, *options, mix=SMALL_MIX, shape=large, gpu_gb=room)

    return [
        own("machine", 90),
        own("ceilings", 45),
        own("right", 90),
        learner(
            "small", 130, mix=SMALL_MIX, shape="0.6B", baselines=["transformers"], disk_gb=20, host_gb=24, gpu_gb=30
        ),
        own("beside", 60),
        learner("large", 110, "--micro-tokens", micro, mix=SMALL_MIX, shape=large, gpu_gb=room),
        compiled("compiled", "elementwise"),
        own("run", 120, disk_gb=2, host_gb=8),
        own("bits", 120),
        learner(
            "long", 110, "--layers", "12", "--micro-tokens", "16384",
            mix=LONG_MIX, shape="8B", baselines=["rectangles", "transformers"], gpu_gb=76,
        ),
        compiled("layers", "layers"),
    ]  # fmt: skip


def _command(module: str, *words: str, fake: bool) -> Sequence[str]:
    return ["-m", module, *words, *(["--fake"] if fake else [])]


def machine(fake: bool) -> Iterator[Row]:
    """Tells what is here, and how long it takes to import the learner and to compile the codec."""
    import torch

    names = ("torch", "transformers", "numpy", "numba")
    found: Row = {"python": sys.version.split()[0], **{name: version(name) for name in names}}
    found |= {"cores": len(os.sched_getaffinity(0)), "host_gb": host_gb()}
    found |= {"disk_gb": shutil.disk_usage(tempfile.gettempdir()).free / 1e9, "card": card().name}
    if torch.cuda.is_available():
        found |= {"capability": torch.cuda.get_device_capability(), "cuda": torch.version.cuda}
        found |= {"cudnn": torch.backends.cudnn.version()}
    yield found
    for name in ("benchmarks.learner.__main__", "benchmarks.learner.stages"):
        yield {"imported": name, "seconds": _seconds(lambda name=name: import_module(name))}  # type: ignore[misc]
    from echo_queue.weights.delta import compiled

    yield {"compiled": "the codec of deltas", "seconds": _seconds(compiled.prepare)}


def ceilings(fake: bool) -> Iterator[Row]:
    """Measures what the device does at most: TFLOP/s of products and attention, GB/s of copies, time of a launch."""
    import torch

    from benchmarks.learner import rates
    from learner.model import device

    where = device.choose("auto")
    for dtype in (torch.bfloat16, torch.float32):
        rate = rates.products(where, dtype, 64 if fake else 8192)
        yield {"what": f"products in {dtype}", "tflop_per_s": rate / 1e12}
    yield {"what": "causal attention, forward", "tflop_per_s": rates.attention(where, 64 if fake else 8192) / 1e12}
    yield {"what": "launch", "microseconds": 1e6 * rates.launch_s(where)}
    size = 1_000_000 if fake else 2_000_000_000
    yield {"what": "copy on the device, read and written", "gb_per_s": rates.memory(where, size) / 1e9}
    if where.type != "cuda":
        return
    gigabytes, room = size / 1e9, torch.randint(0, 100, (size,), dtype=torch.uint8, device=where)
    for kind in ("pageable", "pinned"):
        made = time.perf_counter()
        host = torch.empty(len(room), dtype=torch.uint8, pin_memory=kind == "pinned")
        host.fill_(1)
        yield {"what": f"{kind} memory, allocated and written", "gb_per_s": gigabytes / (time.perf_counter() - made)}
        yield {"what": f"{kind}, to the device", "gb_per_s": gigabytes / rates.of_many(lambda h=host: room.copy_(h), 3)}  # type: ignore[misc]
        yield {"what": f"{kind}, to the host", "gb_per_s": gigabytes / rates.of_many(lambda h=host: h.copy_(room), 3)}  # type: ignore[misc]
    piece = 4 << 20
    took_s = _seconds(lambda: [torch.empty(piece, dtype=torch.uint8, pin_memory=True) for _ in range(64)])
    yield {"what": "pinned memory in pieces of 4 MiB, allocated", "gb_per_s": 64 * piece / took_s / 1e9}


def right(fake: bool) -> Iterator[Row]:
    """Runs the tests that need a GPU, but for those of `bits`."""
    yield from _tested("not bit_for_bit")


def bits(fake: bool) -> Iterator[Row]:
    """Tests in six processes that with `learner.deterministic` a restored policy goes on bit for bit."""
    yield from _tested("bit_for_bit")


def _tested(which: str) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        # What the project's own fixtures need is not here, and these tests need none.
        options = ["--noconftest", "-p", "no:cacheprovider", "-q", "--junitxml", str(report), "-k", which]
        environ = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # of plugins that are there, for another pytest
        command = [sys.executable, "-m", "pytest", *options, TESTS]
        code = subprocess.run(command, env=environ, check=False, timeout=600).returncode
        if not report.exists():
            raise SystemExit(f"pytest has not begun: exit code {code}")
        cases = list(ElementTree.parse(report).iter("testcase"))
    outcomes = {kind: [case.get("name") for case in cases if case.find(kind) is not None] for kind in
                ("failure", "error", "skipped")}  # fmt: skip
    bad = outcomes["failure"] + outcomes["error"]
    skipped = len(outcomes["skipped"])
    yield {"tests": which, "passed": len(cases) - len(bad) - skipped, "skipped": skipped, "failed": bad}
    if code or not cases:
        raise SystemExit(f"pytest: {', '.join(map(str, bad)) or f'exit code {code}'}")


def beside(fake: bool) -> Iterator[Row]:
    """Measures updates of 0.6B alone, and while versions are published beside them."""
    from benchmarks.learner.stages import publisher_to, snapshot_of, temporary_store
    from benchmarks.learner.timing import timed
    from benchmarks.learner.trainers import Ours
    from benchmarks.learner.work import MIXES, SHAPES
    from echo_queue.config import Learner
    from echo_queue.records import Version
    from learner.model import device
    from learner.publication.publish_thread import PublishThread, Snapshot
    from learner.ranks.team import Team

    kind, name = ("fake", "fake") if fake else ("real", "0.6B")
    shape, mix, where = SHAPES[kind][name], MIXES[kind][0], device.choose("auto")
    micro_tokens = 256 if fake else 16_384
    settings = Learner(micro_tokens=micro_tokens, lr=1e-6, activation_checkpointing="full", compile="none")
    trainer = Ours(shape, settings, where, mix.batch(shape.sizes["vocab_size"]), team=Team.alone())
    trainer.update(1)
    count, published = 2 if fake else 4, list[float]()
    alone = [timed(lambda: trainer.update(1)) for _ in range(count)]
    yield {"updates": "alone", "seconds": median(alone)}
    with tempfile.TemporaryDirectory() as folder, temporary_store(Path(folder)) as store:
        publisher = publisher_to(store)

        def publish(version: Version, share: object) -> None:
            published.append(_seconds(lambda: publisher.publish_share(version, share)))  # type: ignore[arg-type]

        thread = PublishThread(publish, lambda *_: None, 300.0)
        thread.start()
        taken = []
        for number in range(1, count + 1):
            if thread.free:
                thread.hand_over(Snapshot.now(Version(1, number), snapshot_of(trainer.policy)))
            taken.append(timed(lambda: trainer.update(1)))
        thread.wait()
        thread.close()
    yield {"updates": "beside publications", "seconds": median(taken), "published_s": published}


def run(fake: bool) -> Iterator[Row]:
    """A small model learns to copy by `echo-queue run`: queue, store, publications and a worker on the same device."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from benchmarks.runs import ECHO_QUEUE, echo_queue
    from benchmarks.stability import GROUPS, SYMBOLS, Setting
    from benchmarks.stability_corners import CONFIG, tokenizer, write_prompts
    from echo_queue.reporting import metrics

    setting = Setting("dapo", "copy", 4, 1, 0, 6 if fake else 200, 1e-3, "warn")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        torch.manual_seed(0)
        shape = Qwen3Config(
            vocab_size=SYMBOLS + 1, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, head_dim=16,
            num_key_value_heads=2, intermediate_size=128, initializer_range=0.1, max_position_embeddings=32,
            tie_word_embeddings=True,
        )  # fmt: skip
        Qwen3ForCausalLM(shape).save_pretrained(folder / "base")
        tokenizer().save_pretrained(folder / "base")
        write_prompts(folder / "prompts.jsonl", setting)
        values = {
            "MODEL__BASE": folder / "base",
            "MODEL__DTYPE": "bfloat16" if torch.cuda.is_available() else "float32",
            "PROMPTS__SOURCE": folder / "prompts.jsonl",
            "STALENESS__S": setting.s,
            "LEARNER__LR": setting.lr,
        }
        program = ECHO_QUEUE if find_spec("matplotlib") else WITHOUT_REPORT
        try:
            took_s = _seconds(lambda: echo_queue("run", CONFIG, folder / "run", values, program))
        except subprocess.SubprocessError as error:
            for log in sorted(folder.glob("run/logs/*.log")):
                print(f"{log.name}:\n{log.read_text(errors='replace')[-1_000:]}")
            raise SystemExit(f"echo-queue run: {error}") from error
        updates = metrics.read(folder / "run" / "metrics.jsonl")
    rewards = [update.reward_mean for update in updates]
    few = max(1, min(20, len(rewards) // 4))
    first, last = fmean(rewards[:few]), fmean(rewards[-few:])
    yield {"updates": len(updates), "groups": GROUPS, "first_rewards": first, "last_rewards": last, "seconds": took_s}
    yield {"lag": metrics.summarise(updates).mean_lag, "kl_behaviour": fmean(update.kl_behaviour for update in updates)}
    if not fake and last - first < RISE:
        raise SystemExit(f"the reward went from {first:.2f} to {last:.2f} only")


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


OWN = {step.__name__: step for step in (machine, ceilings, right, beside, run, bits)}


def main() -> None:
    from benchmarks.rows import append

    name, rows, *rest = sys.argv[1:]
    for row in OWN[name]("--fake" in rest):
        print(row, flush=True)
        append(Path(rows), {"of": name, **row})


if __name__ == "__main__":
    main()
