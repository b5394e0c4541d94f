"""Annotations and syntax: mypy and pyright where they are installed, and the syntax of the oldest Python."""

import ast
import importlib.util
import os
import subprocess
import sys
import textwrap

import pytest
from conftest import CLIENT

OLDEST = (3, 8)
FILES = sorted((CLIENT / "memwarden").rglob("*.py"))

USE = """
from typing import Optional

import memwarden
from memwarden import HuggingFaceCallback, LightningCallback, Monitor

monitor: Monitor = memwarden.Monitor("run", rank=1)
callback = HuggingFaceCallback(monitor)
other = LightningCallback(analyze=False)
asked: bool = monitor.checkpoint_requested
with monitor.phase("forward") as phase:
    monitor.step(1, tokens=2)
memory: object = memwarden.analyze_model(None)["parameters"]
"""


def checker(name, *arguments):
    if importlib.util.find_spec(name) is None:
        pytest.skip("%s is not installed" % name)
    return subprocess.run([sys.executable, "-m", name, *arguments], cwd=str(CLIENT), stdout=-1, stderr=subprocess.STDOUT)


def mypy(tmp_path, *arguments):
    return checker("mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), *arguments)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_oldest_python_parses_it(path):
    ast.parse(path.read_text(), feature_version=OLDEST)


def test_mypy_finds_nothing(tmp_path):
    done = mypy(tmp_path, "memwarden")
    assert done.returncode == 0, done.stdout.decode()


def test_mypy_knows_the_types_in_a_program_that_uses_it(tmp_path):
    (tmp_path / "use.py").write_text(textwrap.dedent(USE))
    done = mypy(tmp_path, str(tmp_path / "use.py"))
    assert done.returncode == 0, done.stdout.decode()
    (tmp_path / "wrong.py").write_text("import memwarden\nmemwarden.Monitor(rank='x')\nmemwarden.Monitr()\n")
    found = mypy(tmp_path, str(tmp_path / "wrong.py")).stdout.decode()
    assert "[arg-type]" in found and "[attr-defined]" in found, found


def test_pyright_finds_nothing():
    done = checker("pyright", "memwarden")
    assert done.returncode == 0, done.stdout.decode()


TRAINERS = {
    "transformers": "class TrainerCallback: ...\nclass Trainer:\n    def __init__(self, callbacks: list[TrainerCallback]) -> None: ...\n",
    "lightning.pytorch": "class Callback: ...\nclass Trainer:\n    def __init__(self, callbacks: list[Callback]) -> None: ...\n",
}
DOCUMENTED = """
from pathlib import Path

import memwarden
from lightning.pytorch import Trainer as Lightning
from transformers import Trainer

Trainer(callbacks=[memwarden.HuggingFaceCallback()])
monitor = memwarden.Monitor("run", log_file=Path("run.jsonl"), oom_snapshot=Path("/scratch"))
Lightning(callbacks=[memwarden.LightningCallback(monitor)])
with monitor.checkpoint(Path("last.pt")):
    monitor.export_json(Path("run.json"))
monitor.checkpoint_saved(Path("last.pt"))
"""


@pytest.mark.parametrize("name", ["pyright", "mypy"])
def test_the_documented_calls_have_no_error(tmp_path, name):
    for package, text in TRAINERS.items():
        folder = tmp_path.joinpath(*package.split("."))
        folder.mkdir(parents=True)
        (folder / "__init__.pyi").write_text(text)
    (tmp_path / "lightning/__init__.pyi").touch()
    program = tmp_path / "program.py"
    program.write_text(DOCUMENTED)
    if name == "pyright":
        import json

        (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(CLIENT), str(tmp_path)]}))
        done = checker("pyright", "-p", str(tmp_path))
    else:
        if importlib.util.find_spec("mypy") is None:
            pytest.skip("mypy is not installed")
        env = dict(os.environ, MYPYPATH=str(tmp_path))
        command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(program)]
        done = subprocess.run(command, cwd=str(CLIENT), env=env, stdout=-1, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout.decode()
