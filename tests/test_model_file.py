"""Model files: real ones load, broken ones give one clear line and leave nothing behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mujoco
import pytest

from tests.support.real_models import QUADRUPED, REAL_MODELS
from tuner.errors import ModelFileError
from tuner.model_file import captured_warnings, load_model

if TYPE_CHECKING:
    from pathlib import Path

BROKEN = {
    "empty.xml": (b"", "empty"),
    "cut.xml": (b"<mujoco>\n<worldbody><body>\n</mujoco>", "MISMATCHED_ELEMENT.*number=2"),
    "text.xml": (b"not a model", "XML parse error"),
    "other.xml": (b"<html/>", "html"),
    "mesh.xml": (
        b"<mujoco><worldbody><geom type='mesh' mesh='gone'/></worldbody></mujoco>",
        "mesh 'gone' not found",
    ),
    "include.xml": (b"<mujoco><include file='gone.xml'/></mujoco>", "gone.xml"),
    "bytes.xml": (bytes(range(256)), "XML parse error"),
    "header.mjb": (b"hello" * 1000, "Model missing header ID"),
    "empty.mjb": (b"", "mjb"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def check_refused(path: Path, words: str, capfd: pytest.CaptureFixture[str]) -> None:
    """One line with these words, nothing printed, nothing written beside the program."""
    with pytest.raises(ModelFileError, match=words) as caught:
        load_model(path)
    assert "\n" not in str(caught.value)
    assert str(path.name) in str(caught.value)
    assert capfd.readouterr() == ("", "")
    assert list(path.parent.joinpath("here").iterdir()) == []


@pytest.mark.parametrize("name", REAL_MODELS)
def test_real_models_load(name: str) -> None:
    assert load_model(str(REAL_MODELS[name])).nq > 0


def test_a_binary_model_loads(folder: Path) -> None:
    model = load_model(QUADRUPED)
    mujoco.mj_saveModel(model, str(folder / "saved.MJB"), None)
    assert load_model(folder / "saved.MJB").nq == model.nq


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_one_clear_line(
    name: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    content, words = BROKEN[name]
    (folder / name).write_bytes(content)
    check_refused(folder / name, words, capfd)


def test_a_binary_model_that_was_cut_short_is_refused(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mujoco.mj_saveModel(load_model(QUADRUPED), str(folder / "cut.mjb"), None)
    whole = (folder / "cut.mjb").read_bytes()
    (folder / "cut.mjb").write_bytes(whole[: len(whole) // 2])
    check_refused(folder / "cut.mjb", "Truncated", capfd)


def test_what_is_not_there_or_not_a_file_is_refused(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "folder.xml").mkdir()
    check_refused(folder / "gone.xml", "there is no model file", capfd)
    check_refused(folder / "folder.xml", "is a folder", capfd)
    (folder / "loop.xml").symlink_to(folder / "loop.xml")
    check_refused(folder / "loop.xml", "cannot be read", capfd)
    with pytest.raises(ModelFileError, match="cannot be read: embedded null"):
        load_model("a\0b.xml")


def test_the_warning_handler_is_put_back() -> None:
    seen: list[str] = []
    mujoco.set_mju_user_warning(seen.append)
    try:
        with captured_warnings() as warnings:
            data_warning()
        assert len(warnings) == 1
        data_warning()
        assert len(seen) == 1
    finally:
        mujoco.set_mju_user_warning(None)


def data_warning() -> None:
    """Makes MuJoCo warn."""
    model = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><body><joint/><geom size='.1'/></body></worldbody></mujoco>"
    )
    data = mujoco.MjData(model)
    data.qpos[0] = float("nan")
    mujoco.mj_step(model, data)
