"""Where the database is."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest

from tuner import cache_path
from tuner.errors import DatabaseError


def test_the_default_is_in_the_users_data_folder_and_is_not_made(home_of_its_own: Path) -> None:
    path = cache_path()
    assert path.is_relative_to(home_of_its_own)
    assert path == platformdirs.user_data_path("tuner", appauthor=False) / "tuning.db"
    assert not path.parent.exists()


def test_the_environment_names_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TUNER_DATABASE", str(tmp_path / "mine.db"))
    assert cache_path() == tmp_path / "mine.db"
    assert cache_path(tmp_path / "flag.db") == tmp_path / "flag.db"


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:////data/tuning.db", Path("/data/tuning.db")),
        ("sqlite:///here.db", Path("here.db")),
        ("sqlite+pysqlite:////data/a%20b.db", Path("/data/a b.db")),
        ("/data/50%20.db", Path("/data/50%20.db")),
    ],
)
def test_a_url_or_a_path(url: str, path: Path) -> None:
    assert cache_path(url) == path


@pytest.mark.parametrize("url", ["postgresql://host/db", "mysql://x", "sqlite://", "sqlite:///"])
def test_a_url_that_names_no_file_is_refused(url: str) -> None:
    with pytest.raises(DatabaseError, match="sqlite:////absolute"):
        cache_path(url)
