"""The search for I/O calls that pass no failpoint notices each of these lines, put into the code."""

import ast

import pytest

from tests.faults.crash_points import unguarded_io

IO_CALLS = (
    "import numpy as np; np.save(path, array)",
    "import numpy; numpy.savez_compressed(path, a=array)",
    "import torch; torch.save(state, path)",
    "import safetensors.torch; safetensors.torch.save_file(tensors, path)",
    "from safetensors.torch import save_file; save_file(tensors, path)",
    "import shutil; shutil.copy2(a, b)",
    "import shutil as tools; tools.make_archive(a, b)",
    "from os import replace; replace(a, b)",
    "from os import replace as put_in_place; put_in_place(a, b)",
    "import os; os.replace(a, b)",
    "import os; os.posix_spawn(a, b, c)",
    "import os; os.sendfile(a, b, 0, 1)",
    "import os.path; os.remove(a)",
    "from subprocess import Popen; Popen(a)",
    "import subprocess; subprocess.getoutput(a)",
    "import signal; signal.pthread_kill(a, b)",
    "client.zadd(key, scores)",
    "client.hincrby(key, name, 1)",
    "self._client.lpush(key, value)",
    "queue.client.eval(script, 0)",
    "broker_client.xtrim(key, 5)",
    "connect().client.xgroup_delconsumer(key, group, name)",
    "pipe.incr(key)",
    "client.copy_object(Bucket=a)",
    "self._client.abort_multipart_upload(Bucket=a)",
    "import socket; socket.socket().send(data)",
    "from socket import socket; socket().send(data)",
    "connection.sendmsg(data)",
    "import pickle; pickle.dump(a, file)",
    "import json; json.dump(a, file)",
    "anything.write(data)",
    "model.save_pretrained(folder)",
    "Path(a).replace(b)",
    "path.write_text(a)",
    "path.open('ab')",
    "open(path, mode='w')",
)
NO_IO_CALLS = (
    "import os; os.getpid(); os.path.join(a, b); os.environ.get(a)",
    "import json; json.dumps(a)",
    "import numpy as np; np.load(path); array.copy()",
    "from safetensors.torch import save; save(tensors)",
    "client.hget(key, name); client.xrange(key)",
    "pipe = client.pipeline()",
    "open(path); path.open('rb')",
    "text.replace(a, b)",
    "from echo_queue.connections.storage.object_store import copy_all; copy_all()",
    "import os; failpoints.step('step', lambda: os.replace(a, b))",
    "import os\ndef io_call():\n    os.replace(a, b)\nfailpoints.step('step', io_call)",
)


@pytest.mark.parametrize("code", IO_CALLS)
def test_an_io_call_is_seen(code: str) -> None:
    (io_call,) = unguarded_io.io_calls_of(ast.parse(code))
    assert io_call.line == 1


@pytest.mark.parametrize("code", NO_IO_CALLS)
def test_what_reads_or_stands_behind_a_failpoint_is_no_io_call(code: str) -> None:
    assert [io_call.what for io_call in unguarded_io.io_calls_of(ast.parse(code))] == []


def test_a_function_that_is_also_called_past_the_failpoint_is_seen() -> None:
    code = "import os\ndef io_call():\n    os.replace(a, b)\nfailpoints.step('step', io_call)\nio_call()"
    assert [(io_call.place, io_call.what) for io_call in unguarded_io.io_calls_of(ast.parse(code))] == [
        ("io_call", "os.replace")
    ]
