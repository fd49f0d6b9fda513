"""Fixtures and settings of all tests: no test touches the user's own database."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.stored import Shell

# No test asserts a time, so hypothesis has no deadline. TUNER_HYPOTHESIS=thorough tries more
# examples in the tests that leave their number to the profile.
for _name, _examples in (("quick", 25), ("thorough", 200)):
    settings.register_profile(
        _name,
        max_examples=_examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile(os.environ.get("TUNER_HYPOTHESIS", "quick"))


# A shell makes its background processes ignore Ctrl-C, and they pass that on to their children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def home_of_its_own(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Give each test, and its processes, an empty home, no database named, its own lock."""
    home = tmp_path_factory.mktemp("home")
    for variable in ("HOME", "XDG_DATA_HOME", "LOCALAPPDATA", "USERPROFILE"):
        monkeypatch.setenv(variable, str(home))
    monkeypatch.delenv("TUNER_DATABASE", raising=False)
    monkeypatch.setenv("TUNER_LOCK_FOLDER", str(home.parent))
    return home


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Name a database that does not exist yet."""
    return tmp_path / "tuning.db"


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    """Run commands in this process."""
    return Shell(capsys)
