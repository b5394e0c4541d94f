"""`python -m memwarden params`; what reads values needs PyTorch."""

import contextlib
import importlib.util
import io
import json
import shutil
import subprocess
import sys

import pytest
from conftest import CLIENT, REPOSITORY

FIXTURES = REPOSITORY / "tests/fixtures/parameters"


def run(*arguments):
    """The exit code, standard output and standard error; in this process, because the import of PyTorch takes seconds."""
    from memwarden.tools.params import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(one) for one in arguments])
        except SystemExit as exit:
            code = exit.code
    return code, out.getvalue(), err.getvalue()


def report(*arguments):
    code, out, err = run("--format", "json", *arguments)
    assert (code, err) == (0, ""), err
    return json.loads(out)


def summary(*arguments):
    return report(*arguments)["checkpoints"][0]["summary"]


def refused(*arguments):
    code, out, err = run(*arguments)
    assert (code, out) == (1, ""), out
    return err


def test_the_packages_that_it_needs_are_named():
    # Without site-packages there is none, wherever the tests run.
    program = "import sys; sys.path = [p for p in sys.path if 'packages' not in p] + [%r]\n" % str(CLIENT)
    program += "from memwarden.tools.params import main; sys.exit(main(['x.pt']))"
    done = subprocess.run([sys.executable, "-S", "-c", program], stdout=-1, stderr=-1, text=True)
    assert done.returncode == 1 and "memwarden params needs the package torch (pip install torch)" in done.stderr


def test_no_package_is_imported_with_the_client():
    program = "import sys, memwarden; print([n for n in sys.modules if n.startswith('memwarden.tools') or n == 'torch'])"
    done = subprocess.run([sys.executable, "-c", program], cwd=str(CLIENT), stdout=-1, text=True)
    assert done.stdout == "[]\n"


COMMANDS = [("parms", "unknown command parms"), ("params", "usage: python -m memwarden params")]


@pytest.mark.parametrize("command, expected", COMMANDS)
def test_commands_are_dispatched(command, expected):
    done = subprocess.run([sys.executable, "-m", "memwarden", command], cwd=str(CLIENT), stdout=-1, stderr=-1, text=True)
    assert done.returncode == 2 and expected in done.stderr


PARTS = {
    "model.embed_tokens.weight": "embedding",
    "model.layers.0.self_attn.q_proj.weight": "attention",
    "model.layers.0.self_attn.q_norm.weight": "norm",
    "model.layers.0.mlp.gate_proj.weight": "mlp",
    "model.layers.0.block_sparse_moe.experts.3.w1.weight": "mlp",
    "lm_head.weight": "head",
    "output.weight": "head",
    "layers.4.attention.wo.weight": "attention",
    "h.0.ln_1.bias": "norm",
    "gpt_neox.layers.0.mlp.dense_h_to_4h.weight": "mlp",
    "bert.encoder.layer.0.output.dense.bias": "mlp",
    "cls.predictions.decoder.weight": "head",
    "base_model.model.model.layers.0.self_attn.v_proj.lora_B.weight": "lora",
    "optimizer.state.0.exp_avg": "optimizer",
    "conv1.weight": "other",
    "": "other",
}


def test_names_of_known_models_have_a_part():
    from memwarden.tools._checkpoints import part_of
    from memwarden.tools.params import clean, prefix, shown_bytes

    assert {name: part_of(name) for name in PARTS} == PARTS
    assert prefix("model.layers.11.mlp.up_proj.weight", 3) == "model.layers.*"
    assert prefix("weight", 2) == "weight"
    assert clean("a\x1b[2Jb\u00e9") == "a\\x1b[2Jb\u00e9"
    assert [shown_bytes(1023), shown_bytes(1 << 20), shown_bytes(1 << 41)] == ["1023 B", "1.0 MiB", "2.0 TiB"]


torch = pytest.importorskip("torch") if importlib.util.find_spec("torch") else None
needs_torch = pytest.mark.skipif(not hasattr(torch, "serialization"), reason="PyTorch is not installed")
needs_safetensors = pytest.mark.skipif(
    importlib.util.find_spec("safetensors") is None, reason="safetensors is not installed"
)


def save(path, **tensors):
    from safetensors.torch import save_file

    save_file({name: torch.as_tensor(value) for name, value in tensors.items()}, str(path))
    return path


@needs_torch
def test_files_of_pytorch_are_read():
    found = summary(FIXTURES / "training.pt")
    assert (found["tensors"], found["tied_tensors"], found["by_group"][0]["name"]) == (10, 1, "optimizer")
    assert found["trainable"] == {"from": "not_told"}
    assert [own["name"] for own in found["by_prefix"]] == ["optimizer.state", "model.wte", "model.fc1"]
    told = summary(FIXTURES / "parameters.pt")["trainable"]
    assert (told["elements"], told["of_elements"]) == (44, 60)
    found = summary(FIXTURES / "kinds.pt")
    assert (found["values"]["nan_elements"], found["values"]["zero_tensors"], found["tensors"]) == (3, 1, 6)
    assert found["values"]["not_scanned"] == {}


@needs_torch
def test_scores_of_lightning_are_not_parameters():
    (found,) = report(FIXTURES / "lightning.ckpt")["checkpoints"]
    assert [row["name"] for row in found["all"]] == ["state_dict.fc.weight", "state_dict.fc.bias"]
    # kth_value of ModelCheckpoint is infinite.
    assert found["summary"]["values"]["inf_elements"] == 0 and "scores" in found["notes"][0]


@needs_torch
def test_names_types_and_counts_of_every_kind(tmp_path):
    nan, inf = float("nan"), float("inf")
    special = torch.tensor([0.0, 1.0, inf, -inf, nan, -0.0])
    names = ("float16", "bfloat16", "float32", "float64", "float8_e5m2")
    state = {name: special.to(getattr(torch, name)) for name in names}
    state["float8_e4m3fn"] = torch.tensor([0x7F, 0xFF, 0x7E, 0, 0x80], dtype=torch.uint8).view(torch.float8_e4m3fn)
    state["float8_e8m0fnu"] = torch.tensor([0xFF, 0, 0x7F], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    state["float8_e4m3fnuz"] = torch.tensor([0x80, 0, 0x7F], dtype=torch.uint8).view(torch.float8_e4m3fnuz)
    state["float4"] = torch.tensor([0x80, 0x10, 0x00, 0x79], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    state.update(boolean=torch.tensor([True, False]), integers=torch.tensor([0, -1, 1]), empty=torch.empty(0))
    state["complex"] = torch.tensor([complex(0, nan)])
    state["gaps"], state["turned"] = torch.arange(6)[::2], torch.zeros(2, 3).t()
    torch.save(state, tmp_path / "all.pt")
    (found,) = report(tmp_path / "all.pt")["checkpoints"]
    counts = {row["name"]: (row["nan"], row["inf"], row["zero"]) for row in found["all"]}
    assert counts == {
        **{name: (1, 2, 2) for name in names},
        "float8_e4m3fn": (2, 0, 2),
        "float8_e8m0fnu": (1, 0, 0),
        "float8_e4m3fnuz": (1, 0, 1),
        "float4": (0, 0, 5),
        "boolean": (0, 0, 1),
        "integers": (0, 0, 1),
        "empty": (0, 0, 0),
        "complex": (1, 0, 1),
        "gaps": (0, 0, 1),
        "turned": (0, 0, 6),
    }
    bytes_of = {row["name"]: (row["dtype"], row["bytes"]) for row in found["all"]}
    assert (bytes_of["float4"], bytes_of["float8_e5m2"]) == (("F4", 4), ("F8_E5M2", 6))
    dtypes = {own["name"]: own["elements"] for own in found["summary"]["by_dtype"]}
    assert dtypes["F4"] == 8
    assert [row["name"] for row in found["summary"]["values"]["zero"]] == ["turned"]


@needs_torch
@pytest.mark.filterwarnings("ignore")
def test_sparse_nested_quantized_and_repeated_tensors_are_counted(tmp_path):
    state = {
        "sparse": torch.eye(3).to_sparse(),
        "rows": torch.eye(3).to_sparse_csr(),
        "nested": torch.nested.nested_tensor([torch.zeros(2), torch.ones(3)]),
        "jagged": torch.nested.nested_tensor([torch.ones(2, 2), torch.ones(3, 2)], layout=torch.jagged),
        "repeated": torch.ones(3).expand(1000, 3),
        "empty": torch.nested.nested_tensor([]),
    }
    if hasattr(torch, "quantize_per_tensor"):
        state["quantized"] = torch.quantize_per_tensor(torch.rand(4, 4), 0.1, 0, torch.qint8)
    torch.save(state, tmp_path / "kinds.pt")
    (found,) = report(tmp_path / "kinds.pt")["checkpoints"]
    rows = {row["name"]: (row["shape"], row["bytes"], row.get("zero")) for row in found["all"]}
    assert rows["sparse"] == ([3, 3], 3 * 4 + 6 * 8, 0)
    assert rows["rows"] == ([3, 3], 3 * 4 + 4 * 8 + 3 * 8, 0)
    assert rows["nested"] == ([2, None], 20, 2)
    assert rows["jagged"] == ([2, None, 2], 40, 0)
    assert rows["repeated"][2] is None
    reasons = found["summary"]["values"]["not_scanned"]
    assert reasons["a view with repetitions"] == 1
    if "quantized" in rows:
        assert rows["quantized"] == ([4, 4], 16, None) and len(reasons) == 2
    assert "[2, ?]" in run(tmp_path / "kinds.pt")[1]


@needs_torch
def test_a_part_of_a_nested_tensor_lies_in_its_buffer():
    from memwarden.tools._checkpoints import Nested

    sizes, strides, offsets = torch.tensor([[4]]), torch.tensor([[1]]), torch.tensor([1 << 40])
    with pytest.raises(RuntimeError):
        Nested.of_rows(torch.ones(4), sizes, strides, offsets)


@needs_torch
def test_keys_of_any_type_are_names_of_their_own(tmp_path):
    torch.save({("tuple", 1): torch.ones(2), None: torch.ones(1), True: torch.ones(1), 5: torch.ones(3)}, tmp_path / "k.pt")
    (found,) = report(tmp_path / "k.pt")["checkpoints"]
    assert [row["name"] for row in found["all"]] == ["('tuple', 1)", "None", "True", "5"]


@needs_torch
def test_arrays_of_numpy_are_read(tmp_path):
    numpy = pytest.importorskip("numpy")
    (found,) = report(FIXTURES / "arrays.npz")["checkpoints"]
    rows = [(row["name"], row["dtype"], row["shape"], row["nan"]) for row in found["all"]]
    assert sorted(rows) == [
        ("big", "F32", [3], 0),
        ("by_columns", "F32", [2, 2], 0),
        ("dense/bias", "F16", [2], 1),
        ("dense/kernel", "F64", [2, 3], 0),
    ]
    assert len(found["notes"]) == 1, "of text and objects"
    assert summary(FIXTURES / "compressed.npz")["elements"] == 6000
    (row,) = report(FIXTURES / "array.npy")["checkpoints"][0]["all"]
    assert (row["name"], row["dtype"], row["zero"]) == ("(array)", "I32", 1)
    state = {"w": torch.ones(2), "arr": numpy.zeros(1000, dtype=numpy.float32), "words": numpy.array(["a"])}
    torch.save(state, tmp_path / "arrays.pt")
    (found,) = report(tmp_path / "arrays.pt")["checkpoints"]
    assert [(row["name"], row["zero"]) for row in found["all"]] == [("w", 0), ("arr", 1000)]
    assert "text" in found["notes"][0]


@needs_torch
def test_a_file_that_would_call_something_is_refused_by_name(tmp_path):
    error = refused(FIXTURES / "system.pt")
    assert "loading it would call posix.system" in error and "--any-class" in error
    program = "import torch\nclass Config:\n    pass\nc = Config()\nc.w = torch.ones(3)\n"
    program += "torch.save({'config': c, 'model': torch.nn.Linear(2, 2)}, %r)\n" % str(tmp_path / "own.pt")
    subprocess.run([sys.executable, "-c", program], check=True)
    assert "would call __main__.Config;" in refused(tmp_path / "own.pt")
    (found,) = report("--any-class", tmp_path / "own.pt")["checkpoints"]
    assert [row["name"] for row in found["all"]] == ["config.w", "model.weight", "model.bias"]
    assert "not known to be harmless: __main__.Config" in found["notes"][0]
    assert found["summary"]["trainable"]["elements"] == 6


@needs_torch
def test_a_damaged_file_and_one_of_the_old_format(tmp_path):
    torch.save({"w": torch.ones(3)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    (found,) = report(tmp_path / "old.pt")["checkpoints"]
    assert found["summary"]["elements"] == 3 and "before PyTorch 1.6" in found["notes"][0]
    bytes_of = (FIXTURES / "training.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(bytes_of[: len(bytes_of) // 2])
    assert "cut.pt: PyTorch cannot read it: " in refused(tmp_path / "cut.pt")


@needs_torch
def test_a_distributed_checkpoint_is_read_from_its_metadata(tmp_path):
    for path in ("distributed", "distributed/.metadata"):
        (found,) = report(FIXTURES / path)["checkpoints"]
        rows = [(row["name"], row["dtype"], row["shape"]) for row in found["all"]]
        assert rows == [("model.fc1.weight", "F32", [5, 4]), ("model.fc1.bias", "BF16", [5])]
        assert (found["summary"]["bytes"], len(found["files"])) == (90, 3)
    shown = run(FIXTURES / "distributed")[1]
    assert "Values: none were read" in shown and "dcp_to_torch" in shown
    shutil.copy(FIXTURES / "distributed/.metadata", tmp_path / ".metadata")
    (tmp_path / "__0_0.distcp").write_bytes(b"")
    code, shown, _ = run(tmp_path)
    assert code == 2 and "cannot be opened: __1_0.distcp" in shown
    assert "shorter than the metadata state: __0_0.distcp" in shown
    (tmp_path / ".metadata").write_bytes(b"\x80\x02cposix\nsystem\nX\x04\x00\x00\x00exit\x85R.")
    assert "loading it would call posix.system" in refused(tmp_path)
    (tmp_path / ".metadata").write_bytes(b"\x80\x02K\x01.")
    assert "no metadata of torch.distributed.checkpoint" in refused(tmp_path)


@needs_torch
def test_a_folder_of_deepspeed_is_read_at_its_newest_step(tmp_path):
    (found,) = report(FIXTURES / "deepspeed")["checkpoints"]
    assert found["all"] == report(FIXTURES / "deepspeed/global_step1")["checkpoints"][0]["all"]
    names = [row["name"] for row in found["all"]]
    assert "module.0.weight" in names and "optimizer_state_dict.single_partition_of_fp32_groups.0" in names
    assert any("zero_to_fp32.py" in note for note in found["notes"])
    # A model beside it is read in its place.
    shutil.copytree(FIXTURES / "deepspeed", tmp_path / "own")
    for name in ("pytorch_model.bin", "rng_state_0.pth"):
        torch.save({name: torch.ones(1)}, tmp_path / "own" / name)
    (found,) = report(tmp_path / "own")["checkpoints"]
    assert [row["name"] for row in found["all"]] == ["pytorch_model.bin"]
    assert any("`latest` names was left out" in note for note in found["notes"])


@needs_torch
@needs_safetensors
def test_shards_with_their_index_are_one_checkpoint(tmp_path):
    nan, inf = float("nan"), float("inf")
    save(tmp_path / "1.safetensors", **{"model.embed_tokens.weight": [0.5] * 8})
    save(tmp_path / "2.safetensors", **{"lm_head.weight": [1.0, nan, inf], "model.norm.bias": [0.0, 0.0]})

    def index(head, total=52):
        of = {"model.embed_tokens.weight": "1.safetensors", head: "2.safetensors", "model.norm.bias": "2.safetensors"}
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": of})
        (tmp_path / "model.safetensors.index.json").write_text(text)

    index("lm_head.weight")
    (found,) = report(tmp_path)["checkpoints"]
    assert (found["summary"]["elements"], found["summary"]["bytes"], found["notes"]) == (13, 52, [])
    values = found["summary"]["values"]
    assert (values["nan_elements"], values["inf_elements"], values["zero_elements"]) == (1, 1, 2)
    assert values["zero"][0]["name"] == "model.norm.bias"
    shown = run(tmp_path)[1]
    assert "Values: 1 NaN and 1 Inf in 1 tensors; 2 zeros, 1 tensors of zeros only" in shown
    index("lm_head.weight", total=3)
    assert "states 3 bytes" in report(tmp_path)["checkpoints"][0]["notes"][0]
    index("another")
    assert "the tensor 'another' is not in 2.safetensors" in refused(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../secret"}}')
    assert "is not in the folder of the index" in refused(tmp_path)


@needs_torch
@needs_safetensors
def test_two_checkpoints_are_compared(tmp_path):
    before = save(tmp_path / "a.safetensors", w=[1.0, 2.0], x=[1.0], y=[1.0], n=[float("nan")])
    after = save(tmp_path / "b.safetensors", w=[1.0, 2.5], y=[1.0, 1.0], z=[1.0], n=[float("nan")])
    found = report("compare", "--difference", before, after)["comparison"]
    assert ([own["name"] for own in found["added"]], [own["name"] for own in found["removed"]]) == (["z"], ["x"])
    assert ([own["before"]["name"] for own in found["changed"]], found["same"], found["compared"]) == (["y"], 2, 2)
    assert found["values"] == [{"name": "w", "elements": 2, "differing": 1, "max_abs": 0.5}]
    shown = run("compare", before, after)[1]
    assert "Compared: 2 of the same shape and type, 1 changed, 1 added, 1 removed" in shown
    assert "values" not in report("compare", before, after)["comparison"]
    assert run("compare", before)[0] == 2 and run(before, "--difference")[0] == 2
    assert len(report(before, after)["checkpoints"]) == 2


@needs_torch
@needs_safetensors
def test_an_adapter_is_reported_with_its_base(tmp_path):
    own, base = tmp_path / "adapter", tmp_path / "base"
    own.mkdir()
    base.mkdir()
    save(own / "adapter_model.safetensors", **{"q_proj.lora_A.weight": [1.0, 1.0]})
    (own / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "target_modules": ["v", "q"]}')
    save(base / "model.safetensors", **{"q_proj.weight": [1.0] * 6})
    shown = run(own, "--base", base)[1]
    assert "Adapter: LORA, rank 2, alpha ?, of ?\n  modules: q, v" in shown
    assert "Trainable: 2 of 8 parameters (25 %)" in shown
    assert "the share is known with --base" in run(own)[1]


@needs_torch
def test_other_files_are_named(tmp_path):
    assert "no .safetensors, .pt, .pth, .bin, .ckpt, .npz, .npy file" in refused(tmp_path)
    (tmp_path / "_METADATA").write_text("{}")
    assert "a checkpoint of Orbax is not read; restore it" in refused(tmp_path)
    (tmp_path / "_METADATA").unlink()
    (tmp_path / "__0_0.distcp").write_bytes(b"PK\x03\x04")
    assert "(.distcp) without the file .metadata" in refused(tmp_path)
    assert "give its folder" in refused(tmp_path / "__0_0.distcp")
    (tmp_path / "model.weights.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    assert "an HDF5 file is not read; load it with its framework" in refused(tmp_path / "model.weights.h5")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4\n"
    for name in ("model.safetensors", "model.safetensors.index.json"):
        (tmp_path / name).write_text(pointer)
        assert "a pointer of Git LFS in place of the file; `git lfs pull` fetches" in refused(tmp_path / name)
    assert "not a regular file" in refused("/dev/zero")
    assert "no such file or folder" in refused(tmp_path / "none.pt")


@needs_torch
def test_a_report_is_written_and_values_are_left_out_on_request(tmp_path):
    code, out, err = run(FIXTURES / "training.pt", "--no-scan", "--format", "json", "--output", tmp_path / "r.json")
    assert (code, out, err) == (0, "", "")
    (found,) = json.loads((tmp_path / "r.json").read_text())["checkpoints"]
    assert len(found["all"]) == 10 and "values" not in found["summary"], "unknown is absent"
    assert "Values were not read" in run(FIXTURES / "training.pt", "--no-scan")[1]
    assert "optimizer.state.1.step" in run(FIXTURES / "training.pt", "--tensors", "--top", 1)[1]
