"""Zero code from an installation: into a venv, with --user, with --target; nothing is fetched."""

import email
import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile

import memwarden
import pytest
from conftest import CLIENT, HERE, PATIENCE, REPOSITORY

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
    version = int(setuptools.__version__.split(".")[0])
    if version < 61:
        pytest.skip("setuptools %s does not read pyproject.toml" % setuptools.__version__)
    if version < 71:
        # From then on it makes wheels by itself.
        pytest.importorskip("wheel")
    if subprocess.run([sys.executable, "-m", "pip", "--version"], stdout=-1, stderr=-1).returncode != 0:
        pytest.skip("pip is not installed")
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("made")
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "memwarden.pth", "README.md", "LICENSE"):
        shutil.copy(CLIENT / name, source / name)
    shutil.copytree(CLIENT / "memwarden", source / "memwarden", ignore=shutil.ignore_patterns("__pycache__"))
    build = ["--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", made, source]
    command([sys.executable, "-m", "pip", "wheel", "--quiet", *build])
    return next(made.glob("*.whl"))


def test_the_wheel_holds_what_it_should(wheel):
    package = CLIENT / "memwarden"
    sources = {"memwarden/%s" % path.relative_to(package) for path in package.rglob("*.py")}
    with zipfile.ZipFile(wheel) as archive:
        inside = {name: archive.read(name) for name in archive.namelist()}
    information = {name for name in inside if ".dist-info/" in name}
    assert set(inside) - information == sources | {"memwarden/py.typed", "memwarden.pth"}
    (license_file,) = [name for name in information if name.endswith("LICENSE")]
    assert inside[license_file] == (REPOSITORY / "LICENSE").read_bytes()
    (about,) = [name for name in information if name.endswith("/METADATA")]
    metadata = email.message_from_bytes(inside[about])
    assert metadata["Name"] == "memwarden" and metadata["Version"] == memwarden.__version__
    assert "Apache-2.0" in (metadata["License"], metadata["License-Expression"])
    assert metadata["Requires-Python"] == ">=3.8"
    assert "Typing :: Typed" in metadata.get_all("Classifier")
    # The extras of the tests are the only ones: the client needs the standard library alone.
    assert all("extra ==" in each for each in metadata.get_all("Requires-Dist") or [])


def test_client_and_daemon_have_one_version():
    manifest = (REPOSITORY / "Cargo.toml").read_text()
    assert re.search(r'^version = "(.*)"', manifest, re.M).group(1) == memwarden.__version__


@pytest.fixture
def trains(daemon):
    """Instruments a program as the installed package says, and without `printed` by MEMWARDEN_AUTO alone."""

    def train(python, printed=True, **env):
        count = len(daemon.connections)
        line = command([python, "-m", "memwarden"], **env) if printed else "export MEMWARDEN_AUTO=1\n"
        assert line.startswith("export MEMWARDEN_AUTO=1"), line
        program = line + 'PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$FAKE" exec "$0" -c "$1"'
        command(["sh", "-c", program, python, TRAIN], FAKE=str(HERE / "fake_torch"), **env)
        daemon.wait_end(count + 1)
        lines = [json.loads(line) for line in daemon.connections[-1].lines]
        assert len(daemon.connections) == count + 1
        assert [message["step"] for message in lines if message["type"] == "step"][-1] == 3
        assert lines[-1]["type"] == "bye"

    return train


def imports_no_more(python, **env):
    """A program without torch imports the hook only where MEMWARDEN_AUTO is set, and never the monitor."""
    program = "import sys; print([name for name in sys.modules if name.startswith('memwarden')])"
    assert command([python, "-c", program], **env).strip() == "[]"
    hook = command([python, "-c", program], MEMWARDEN_AUTO="1", **env).strip()
    assert hook == "['memwarden', 'memwarden.auto', 'memwarden.auto.sitecustomize']"


def test_into_a_folder(wheel, trains, tmp_path):
    pip(sys.executable, "--target", tmp_path / "folder", wheel)
    trains(sys.executable, PYTHONPATH=str(tmp_path / "folder"))


def test_for_a_user(wheel, trains, tmp_path):
    # A venv that sees what is outside of it may install for the user as well.
    venv.create(tmp_path / "venv", with_pip=True, system_site_packages=True)
    python, env = tmp_path / "venv" / "bin" / "python", {"PYTHONUSERBASE": str(tmp_path / "user")}
    # Also where the distribution keeps its own Python for itself.
    pip(python, "--user", wheel, PIP_BREAK_SYSTEM_PACKAGES="1", **env)
    assert list((tmp_path / "user").rglob("memwarden/py.typed"))
    trains(python, **env)
    trains(python, printed=False, **env)
    imports_no_more(python, **env)


def test_into_a_venv(wheel, trains, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    pip(python, wheel)
    trains(python)
    trains(python, printed=False)
    imports_no_more(python)
    # Another sitecustomize of the environment runs with both ways of instrumenting.
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    ran = tmp_path / "ran"
    (site / "sitecustomize.py").write_text("open(%r, 'a').write('x')\n" % str(ran))
    trains(python, printed=False)
    assert ran.read_text() == "x"
    trains(python)
    # Once more by `python -m memwarden`.
    assert ran.read_text() == "xxx"
    command([python, "-m", "pip", "uninstall", "--quiet", "--yes", "memwarden"])
    assert not list(site.glob("memwarden*"))
