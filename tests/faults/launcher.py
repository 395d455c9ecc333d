"""Runs command lines in forked processes that are killed, starved of disk or cut off at a file operation.

Importing and compiling everything takes longer than a tiny run does: this script does both once, forks for every line
of JSON that it reads, and answers each with a line of JSON.
"""

import json
import os
import resource
import signal
import sys
import time
import traceback
from importlib import import_module

import tiny
import torch
from pictures import save_dots

import mirrormax
from mirrormax import commands
from mirrormax._identity import this_code

# What a process does to files, as Python's audit hooks tell it just before it happens.
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "tempfile.mkstemp", "tempfile.mkdtemp")


def import_all():
    for name in commands.COMMANDS:
        import_module(f"mirrormax.commands.{name}")
    for module in ("matplotlib.figure", "mirrormax.training.run", "sklearn.datasets"):
        import_module(module)
    torch.set_num_threads(1)
    tiny.shrink(setattr)


def compile_all():
    """One step of the optimizer that training uses; without a backward pass, whose threads no fork would have."""
    model = torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    mirrormax.MirrorAdamW(model, lr=1e-3).step()


def perform(request):
    """Run the request in a fork, and kill that after a while if so asked."""
    pid = os.fork()
    if pid == 0:
        os._exit(child(request))
    if request["kill_after"] is not None:
        deadline = time.monotonic() + request["kill_after"]
        while time.monotonic() < deadline and not has_ended(pid):
            time.sleep(0.002)
        os.kill(pid, request["signal"])  # still ours: it is not waited for yet
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def race(requests):
    """Run all requests at once, each in a fork, and return their codes."""
    pids = []
    for request in requests:
        pids.append(os.fork())
        if pids[-1] == 0:
            os._exit(child(request))
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def has_ended(pid):
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def child(request):
    for number, stream in enumerate(("out", "err"), start=1):
        os.dup2(os.open(f"{request['talk']}.{stream}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.chdir(request["cwd"])
    if request["largest_file"] is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that writing fails instead, as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["largest_file"],) * 2)
    if not request["pictures"]:
        save_dots(setattr)
    changes = count_changes(request["die_at"])
    try:
        code = commands.main(request["arguments"])
    except SystemExit as stop:
        code = stop.code
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    if request["largest_file"] is None:
        with open(f"{request['talk']}.changes", "w") as file:
            file.write(str(changes[0]))
    return code


def count_changes(die_at):
    """Count the changes to files from now on, and die by SIGKILL just before the one of a number."""
    count = [0]

    def hook(event, arguments):
        if event in CHANGES or (event == "open" and is_writing(arguments)):
            count[0] += 1
            if count[0] == die_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return count


def is_writing(arguments):
    path, mode, flags = arguments
    writes = any(letter in mode for letter in "wxa+") if mode else bool((flags or 0) & (os.O_WRONLY | os.O_RDWR))
    return writes and not str(path).startswith("/dev/")


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print is no answer
    import_all()
    compile_all()
    this_code()  # the sources are read once
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(race(asked) if isinstance(asked, list) else perform(asked)), file=answers, flush=True)
