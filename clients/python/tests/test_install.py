"""Zero code from an installation: into a venv, with --user, with --target; nothing is fetched."""

import os
import shutil
import subprocess
import sys
import venv

import pytest
from conftest import CLIENT, HERE, PATIENCE

TRAIN = """
import torch
weight = torch.Tensor([1.0] * 4, (2, 2), requires_grad=True)
optimizer = torch.optim.AdamW(torch.nn.Module(**{"wte.weight": weight}).parameters())
for _ in range(3):
    optimizer.step()
"""


def command(words, **env):
    done = subprocess.run(
        list(map(str, words)), env=dict(os.environ, **env), stdout=-1, stderr=-1, timeout=PATIENCE * 10
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def pip(python, *words, **env):
    return command([python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", *words], **env)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """What pip makes of a checkout, which stays as it is."""
    setuptools = pytest.importorskip("setuptools")
    if int(setuptools.__version__.split(".")[0]) < 71:
        # From then on it makes wheels by itself.
        pytest.importorskip("wheel")
    if subprocess.run([sys.executable, "-m", "pip", "--version"], stdout=-1, stderr=-1).returncode != 0:
        pytest.skip("pip is not installed")
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("made")
    for name in ("memwarden.py", "pyproject.toml", "README.md"):
        shutil.copy(CLIENT / name, source / name)
    shutil.copytree(CLIENT / "auto", source / "auto", ignore=shutil.ignore_patterns("__pycache__"))
    build = ["--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", made, source]
    command([sys.executable, "-m", "pip", "wheel", "--quiet", *build])
    return next(made.glob("*.whl"))


@pytest.fixture
def trains(daemon):
    """Does in a shell what the installed module says, and trains there."""

    def train(python, **env):
        line = command([python, "-m", "memwarden"], **env)
        assert line.startswith("export MEMWARDEN_AUTO=1 "), line
        program = line + 'PYTHONPATH="$PYTHONPATH:$FAKE" exec "$0" -c "$1"'
        command(["sh", "-c", program, python, TRAIN], FAKE=str(HERE / "fake_torch"), **env)
        daemon.wait_end()
        assert daemon.of("step")[-1]["step"] == 3
        assert daemon.of("bye")

    return train


def test_into_a_folder(wheel, trains, tmp_path):
    pip(sys.executable, "--target", tmp_path / "folder", wheel)
    trains(sys.executable, PYTHONPATH=str(tmp_path / "folder"))


def test_for_a_user(wheel, trains, tmp_path):
    # A venv that sees what is outside of it may install for the user as well.
    venv.create(tmp_path / "venv", with_pip=True, system_site_packages=True)
    python, env = tmp_path / "venv" / "bin" / "python", {"PYTHONUSERBASE": str(tmp_path / "user")}
    # Also where the distribution keeps its own Python for itself.
    pip(python, "--user", wheel, PIP_BREAK_SYSTEM_PACKAGES="1", **env)
    assert list((tmp_path / "user").rglob("memwarden.py"))
    trains(python, **env)


def test_into_a_venv(wheel, trains, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    pip(python, wheel)
    trains(python)
