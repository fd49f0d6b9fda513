"""The command line in processes of its own, as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.jobs import ROOT

QUADRUPED = ROOT / "examples" / "quadruped.xml"
TUNE = ("tune", str(QUADRUPED), "--num-envs", "32", "--nthread", "2", "--nstep", "1")


def tuner(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command."""
    return subprocess.run(
        [sys.executable, "-m", "tuner", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        check=False,
    )
