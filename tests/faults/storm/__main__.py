"""The command: one storm, its report, and an exit code."""

import argparse
import gc
import os
import secrets
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

from tests.faults import storm
from tests.faults.storm import forked_roles, observer
from tests.faults.storm.settings import in_words
from tests.faults.storm.storm import Storm
from tests.faults.storm.summary import met
from tests.images.engine import docker_answers, prepare


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.faults.storm", description=(storm.__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, which is printed")
    parser.add_argument("--duration", type=float, default=600.0, help="seconds of killing")
    parser.add_argument("--ranks", type=int, default=None, help="of the learner; default: as the seed draws")
    parser.add_argument("--keep", action="store_true", help="keep the directory of a storm that was withstood too")
    parser.add_argument("--containers", action="store_true", help="run the workers in containers, of make images")
    arguments = parser.parse_args()
    if arguments.containers and docker_answers():
        parser.error(
            "--containers needs Podman, whose containers are processes below the storm's own; stop Docker first"
        )
    if arguments.containers:
        prepare()
    seed = secrets.randbelow(2**31) if arguments.seed is None else arguments.seed
    directory = Path(tempfile.mkdtemp(prefix=f"storm-{seed}-"))
    print(f"storm of {arguments.duration:.0f} s, seed {seed}, in {directory}", flush=True)
    warm_up()
    forked_roles.adopt_orphans()
    gc.freeze()
    try:
        ok = withstood(Storm(directory, seed, arguments.duration, arguments.ranks, arguments.containers))
    except Exception:  # the run never began, or its evidence cannot be read: that is no withstood storm
        traceback.print_exc(file=sys.stdout)
        ok = False
    if ok and not arguments.keep:
        shutil.rmtree(directory)
    else:
        print(f"everything is in {directory}")
    print("every promise was kept" if ok else f"NOT WITHSTOOD: repeat with --seed {seed}")
    return 0 if ok else 1


def withstood(storm_run: Storm) -> bool:
    """Runs the storm; prints its report, stores it in the directory, and returns whether the storm was withstood."""
    print(f"rules: {in_words(storm_run.config)}", flush=True)
    directory = storm_run.directory
    summary, verdict = storm_run.run()
    looked_s = [snapshot.time_s for snapshot in observer.snapshots(directory)]
    shown = met(storm_run.config, verdict, summary.done)
    complaints = summary.complaints(looked_s, shown)
    remarks = [f"remark      {what}" for what in summary.remarks(looked_s, shown)]
    report = "\n".join([summary.report(verdict), *remarks, *(f"COMPLAINT   {what}" for what in complaints)])
    (directory / "report").write_text(report)
    print(report)
    return verdict.ok and not complaints


def warm_up() -> None:
    """Imports once what roles import, since children are forked with it in place."""
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # as the learner sets it before it imports torch
    import boto3
    import celery.bin.worker
    import celery.concurrency.prefork
    import celery.worker.consumer
    import kombu.transport.redis
    import torch
    import transformers.models.qwen3.modeling_qwen3

    import echo_queue.submission.celery.app
    import learner.__main__
    import learner.training_loop
    import workers.worker

    del celery, kombu, transformers, echo_queue.submission.celery.app, learner, workers
    torch.set_num_threads(1)
    boto3.client("s3", region_name="us-east-1", aws_access_key_id="-", aws_secret_access_key="-").close()


if __name__ == "__main__":
    sys.exit(main())
