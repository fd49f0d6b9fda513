"""What this machine is."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

from tuner import device_fingerprint
from tuner.device import usable_cpus


def test_the_fingerprint_has_its_facts_and_no_names() -> None:
    fingerprint = device_fingerprint()
    assert {"system", "machine", "cpu_count"} <= set(fingerprint)
    assert fingerprint["cpu_count"] == os.cpu_count()
    assert socket.gethostname() not in json.dumps(fingerprint)


def test_the_fingerprint_is_the_same_in_another_process_and_folder() -> None:
    program = "import json, tuner; print(json.dumps(tuner.device_fingerprint()))"
    printed = subprocess.run(
        [sys.executable, "-c", program], cwd="/", capture_output=True, text=True, check=True
    )
    assert json.loads(printed.stdout) == device_fingerprint()


def test_usable_cpus_follow_the_affinity() -> None:
    program = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});" + (
        "from tuner.device import usable_cpus; print(usable_cpus())"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert printed.stdout.strip() == "1"
    assert 1 <= usable_cpus() <= (os.cpu_count() or 1)
