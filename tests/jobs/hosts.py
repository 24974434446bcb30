"""Two hosts on one machine: network namespaces with a cable between them, each with a torchrun of its own.

    host0  10.77.0.1  left -------- right  10.77.0.2  host1

Everything lies in a user namespace of its own, so it needs no rights, and is gone when its last process is.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from jobs.torchrun import environment

SCRIPT = """
set -eu
ip link set lo up
ip link add left type veth peer name right
unshare --net --uts --kill-child sh -c 'hostname host1; exec sleep 600' > /dev/null 2>&1 &
peer=$!
until [ "$(nsenter --uts=/proc/$peer/ns/uts hostname)" = host1 ]; do sleep 0.05; done
hostname host0
there="nsenter --net=/proc/$peer/ns/net --uts=/proc/$peer/ns/uts"
ip link set right netns $peer
ip addr add 10.77.0.1/24 dev left
ip link set left up
$there sh -c 'ip link set lo up; ip addr add 10.77.0.2/24 dev right; ip link set right up'
GLOO_SOCKET_IFNAME=right $there "$@" --node-rank 1 $PROGRAM &
other=$!
code=0
GLOO_SOCKET_IFNAME=left "$@" --node-rank 0 $PROGRAM || code=$?
wait $other || code=$?
kill -KILL $peer  # which it ignores otherwise, as long as its child lives
exit $code
"""


APART = ("unshare", "--user", "--map-root-user", "--net", "--uts")


@cache
def can_have_two() -> bool:
    """Whether this machine lets its users make namespaces, and has the tools."""
    if not all(map(shutil.which, ("unshare", "nsenter", "ip", "hostname"))):
        return False
    cable = "ip link add left type veth peer name right"
    return subprocess.run([*APART, *cable.split()], capture_output=True, check=False).returncode == 0


def start_on_two(ranks: int, program: Path, *arguments: object, timeout: float = 240, **variables: str) -> str:
    """Run a program on so many ranks of each of two hosts to its end, which must be a good one; what it printed."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", str(ranks)]
    rendezvous = ["--master-addr", "10.77.0.1", "--master-port", "29571"]
    asked = [*APART, "--kill-child", "bash", "-c", SCRIPT, "hosts", *torchrun, *rendezvous]
    known = environment(**variables) | {"PROGRAM": " ".join(map(str, (program, *arguments)))}
    done = subprocess.run(asked, capture_output=True, text=True, env=known, timeout=timeout, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
