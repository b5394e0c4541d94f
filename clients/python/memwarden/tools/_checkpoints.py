"""Opens parameter files: what each contains, without the values, which are mapped and read later.

A pickle is read by PyTorch's restricted reader, which calls no function but those that rebuild tensors. Classes that only hold
values are replaced by an inert stand-in; what a file names besides them is an error.
"""

import importlib
import json
import os
import pickle
import warnings
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Set, Tuple

from ._tensors import BITS, name_of

#: Largest index or configuration in bytes.
MOST_JSON = 100_000_000
#: Depth of containers: the state of an optimizer is at 6, a module that was saved as a whole at 30.
DEEP = 100
ADAPTER = "adapter_config.json"
METADATA = ".metadata"
SUFFIXES = {
    ".safetensors": "safetensors", ".pt": "torch", ".pth": "torch", ".bin": "torch", ".ckpt": "torch", ".npz": "numpy",
    ".npy": "numpy",
}
#: First bytes of files of other formats, and what to give instead.
OTHER_FORMATS = {
    b"\x89HDF": "an HDF5 file is not read; load it with its framework, and give the arrays as numpy.savez writes them",
    b"GGUF": "a GGUF file is not read; give the safetensors or .pt files that it was converted from",
    b"version https://git-lfs": "a pointer of Git LFS in place of the file; `git lfs pull` fetches the file",
}
#: Files that only Orbax writes.
ORBAX = ("_CHECKPOINT_METADATA", "_METADATA", "manifest.ocdbt", "default/manifest.ocdbt")
#: What a folder of Transformers has beside a model.
STATES_OF_RUN = ("optimizer", "scheduler", "scaler", "rng_state", "training_args")
#: Modules whose named classes only hold values, and a module whose classes are modules of PyTorch, saved as a whole.
PLAIN = {
    "argparse": "Namespace",
    "collections": "OrderedDict defaultdict Counter deque",
    "datetime": "datetime date timedelta timezone",
    "decimal": "Decimal",
    "fractions": "Fraction",
    "pathlib": "Path PosixPath PurePosixPath PurePath",
    "uuid": "UUID",
    "builtins": "set frozenset slice range complex object list dict tuple",
    "torch": "Size device layout memory_format",
    "torch.serialization": "_get_layout",
    "torch.distributed.checkpoint.metadata": "Metadata TensorStorageMetadata BytesStorageMetadata ChunkStorageMetadata "
    "TensorProperties MetadataIndex StorageMeta _MEM_FORMAT_ENCODING",
    "torch.distributed.checkpoint.filesystem": "_StorageInfo _StoragePrefix",
    "torch.distributed._shard.sharded_tensor.metadata": "TensorProperties MEM_FORMAT_ENCODING",
    "deepspeed.runtime.fp16.loss_scaler": "LossScaler DynamicLossScaler",
    "deepspeed.runtime.zero.config": "ZeroStageEnum",
    "deepspeed.utils.tensor_fragment": "fragment_address",
    "numpy": "ndarray dtype",
    "numpy.core.multiarray": "_reconstruct scalar",
    "numpy._core.multiarray": "_reconstruct scalar",
}
MODULES_OF_TORCH = "torch.nn.modules."
#: Parts of a model by the names of tensors, in the order in which they are tried: a name of a component between dots, or a
#: part of the whole name. Hugging Face, Megatron-LM, LLaMA's own release, GPT-2, GPT-NeoX, BERT, T5, Mixtral, PEFT.
PARTS = (
    ("optimizer", "optimizer optimizer_states optimizer_state_dict optim exp_avg exp_avg_sq max_exp_avg_sq "
     "momentum_buffer", ""),
    ("lora", "", "lora_ lora. lokr_ hada_ adapter prompt_encoder ia3"),
    ("norm", "ln1 ln2 ln bn1 bn2 bn3 bn", "norm ln_ _ln batch_norm"),
    ("head", "lm_head head heads embed_out classifier score output_layer predictions cls seq_relationship qa_outputs "
     "value_head v_head", ""),
    ("embedding", "wte wpe shared cls_token pos_emb tok_emb", "embed"),
    ("attention", "q_proj k_proj v_proj o_proj out_proj wq wk wv wo query key value rotary_emb", "attn attention qkv"),
    ("mlp", "gate_proj up_proj down_proj fc1 fc2 c_fc w1 w2 w3 linear1 linear2",
     "mlp ffn feed_forward feedforward expert moe dense_h_to_4h dense_4h_to_h densereludense intermediate"),
)


class Unreadable(Exception):
    """A file that cannot be read, as a sentence."""


def package(name: str, needed_for: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        command = "pip install %s" % name.split(".")[0]
        raise Unreadable("%s needs the package %s (%s): %s" % (needed_for, name, command, error)) from None


def part_of(name: str) -> str:
    """The part of the model that a tensor of this name belongs to."""
    lower = name.lower()
    components = lower.split(".")
    for part, own, within in PARTS:
        if any(word in components for word in own.split()) or any(word in lower for word in within.split()):
            return part
    inner = [one for one in components if one not in ("module", "model", "state_dict")]
    # The head of LLaMA's own release; the layers of BERT end in output.dense.
    if inner[:1] == ["output"]:
        return "head"
    return "mlp" if "output.dense" in lower else "other"


class Tensor:
    """One tensor of a file."""

    def __init__(self, name: str, dtype: str, shape: Iterable[Any], elements: int, size: int) -> None:
        self.name, self.dtype, self.shape, self.elements, self.bytes = name, dtype, list(shape), elements, size
        self.part = part_of(name)
        self.file = 0
        #: Makes the tensors whose elements are read: several of a sparse or nested one.
        self.load: Optional[Callable[[], List[Any]]] = None
        #: Why no elements are read.
        self.why = ""
        #: Tensors of the same place have the same elements.
        self.place: Any = None
        self.is_parameter = False
        self.requires_grad: Optional[bool] = None


class File:
    def __init__(self, path: str) -> None:
        self.path, self.size = path, os.path.getsize(path)
        self.tensors: List[Tensor] = []
        self.metadata: Dict[str, str] = {}
        self.notes: List[str] = []


class StandIn(Dict[Any, Any]):
    """What a pickle makes of a class that is not imported: its arguments, its state and its items."""

    name = ""

    def __new__(cls, *args: Any) -> "StandIn":
        made = super().__new__(cls)
        made.args, made.state = args, None
        return made

    def __init__(self, *args: Any) -> None:
        super().__init__()

    args: Tuple[Any, ...]
    state: Any
    # The metadata of a distributed checkpoint have them as keys.
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self is other

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def get_state(self, name: str) -> Any:
        return self.state.get(name) if isinstance(self.state, dict) else None


class Nested:
    """A nested tensor. Its parts are made here: PyTorch does not check that they lie within their buffer."""

    parts: List[Any]
    shape: List[Optional[int]]

    @classmethod
    def of_rows(cls, buffer: Any, sizes: Any, strides: Any, offsets: Any) -> "Nested":
        made = cls()
        rows = zip(sizes.tolist(), strides.tolist(), offsets.tolist()) if sizes.dim() == 2 else ()
        made.parts = [buffer.as_strided(size, stride, offset) for size, stride, offset in rows]
        made.shape = [len(made.parts), *([None] * (int(sizes.shape[1]) if made.parts else 0))]
        return made

    @classmethod
    def of_values(cls, arguments: Dict[str, Any]) -> "Nested":
        made = cls()
        made.parts = [arguments["values"]]
        made.shape = [arguments["offsets"].numel() - 1, None, *arguments["values"].shape[1:]]
        return made

    def __setstate__(self, state: Any) -> None:
        pass


#: What is called in place of the functions that rebuild nested tensors.
NESTED = {
    "torch._utils._rebuild_nested_tensor": Nested.of_rows,
    "torch.nested._internal.nested_tensor._rebuild_njt": Nested.of_values,
    "torch.nested._internal.nested_tensor.NestedTensor": Nested,
}


def stand_in(name: str) -> type:
    return type(name.rpartition(".")[2], (StandIn,), {"name": name})


def is_plain(name: str) -> bool:
    module, _, own = name.rpartition(".")
    return own in PLAIN.get(module, "").split() or name.startswith(MODULES_OF_TORCH)


class PlainUnpickler(pickle.Unpickler):
    """Reads a pickle without tensors; every class is a stand-in."""

    def find_class(self, module: str, name: str) -> Any:
        torch = package("torch", "the metadata of a distributed checkpoint")
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if not is_plain("%s.%s" % (module, name)):
            raise Unreadable("loading it would call %s.%s" % (module, name))
        return stand_in("%s.%s" % (module, name))


def allowed(names: Iterable[str], any_class: bool, notes: List[str]) -> List[Tuple[Any, str]]:
    """What stands for each name that PyTorch's reader does not know: NumPy's own functions, and stand-ins."""
    unknown = sorted(name for name in names if not (is_plain(name) or name in NESTED or name.startswith("numpy.")))
    if unknown:
        what = ", ".join(unknown[:8])
        if not any_class:
            raise Unreadable("loading it would call %s; --any-class reads it without a call of these" % what)
        notes.append("loading it would call functions that are not known to be harmless: %s" % what)
    made: List[Tuple[Any, str]] = []
    numpy: Any = None
    for name in names:
        if not name.startswith("numpy."):
            made.append((NESTED.get(name) or stand_in(name), name))
            continue
        if numpy is None:
            numpy = package("numpy", "a file with arrays of NumPy")
            made += [(type(numpy.dtype(code)), "numpy.dtypes.%s" % code) for code in numpy.typecodes["All"]]
        if not is_plain(name) and not name.startswith("numpy.dtypes."):
            raise Unreadable("loading it would call %s" % name)
        module, _, own = name.rpartition(".")
        if module == "numpy":
            made.append((getattr(numpy, own), name))
        elif module.endswith("multiarray"):
            made.append((getattr(importlib.import_module(numpy.zeros(0).__reduce__()[0].__module__), own), name))
    return made


def read_torch(path: str, any_class: bool) -> File:
    torch = package("torch", "a file of torch.save")
    found = File(path)
    serialization = torch.serialization
    if not hasattr(serialization, "get_unsafe_globals_in_checkpoint"):
        raise Unreadable("needs PyTorch 2.6 or later; this is %s" % torch.__version__)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            is_archive = serialization._is_zipfile(open(path, "rb"))
            names = serialization.get_unsafe_globals_in_checkpoint(path) if is_archive else []
            with serialization.safe_globals(allowed(names, any_class, found.notes)):
                held = torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive)
        except Unreadable:
            raise
        except Exception as error:
            # The first line of what the restricted reader says recommends to read the file without restrictions.
            why = str(error).rpartition("WeightsUnpickler error: ")[2].split("\n")[0]
            raise Unreadable("PyTorch cannot read it: %s" % why) from None
    if not is_archive:
        found.notes.append("of the format before PyTorch 1.6, which is read into memory as a whole")
    Walk(torch, found, isinstance(held, dict) and "pytorch-lightning_version" in held).walk(held, "", 0)
    return found


class Walk:
    """Finds the tensors of a loaded object, each named by the keys on the way to it."""

    def __init__(self, torch: Any, found: File, is_of_lightning: bool) -> None:
        self.torch, self.found, self.is_of_lightning = torch, found, is_of_lightning
        self.seen: Set[int] = set()
        self.skipped: Dict[str, int] = {}

    def walk(self, value: Any, path: str, depth: int) -> None:
        self._one(value, path, depth)
        self.found.notes += ["left out: %d %s" % (count, what) for what, count in sorted(self.skipped.items())]

    def _skip(self, what: str) -> None:
        self.skipped[what] = self.skipped.get(what, 0) + 1

    def _one(self, value: Any, path: str, depth: int) -> None:
        if isinstance(value, Nested):
            self._nested(value, path or "(root)")
        elif isinstance(value, self.torch.Tensor):
            self._tensor(value, path or "(root)")
        elif type(value).__module__ == "numpy" and hasattr(value, "__array_interface__"):
            self._array(value, path or "(root)")
        elif isinstance(value, (dict, list, tuple, set, frozenset)) and id(value) not in self.seen:
            self.seen.add(id(value))
            if depth == DEEP:
                return self._skip("containers more than %d levels deep" % DEEP)
            for key, inner in self._items(value):
                own = key if isinstance(key, str) else repr(key)
                inside = own in ("_parameters", "_buffers", "_modules")
                self._one(inner, path if inside else "%s.%s" % (path, own) if path else own, depth + 1)

    def _items(self, value: Any) -> Iterator[Tuple[Any, Any]]:
        if isinstance(value, dict):
            yield from value.items()
        else:
            yield from enumerate(value)
        if isinstance(value, StandIn):
            state = value.state if isinstance(value.state, dict) else {"state": value.state}
            yield from state.items()
            yield from enumerate(value.args)

    def _array(self, value: Any, name: str) -> None:
        if not value.dtype.isnative:
            value = value.astype(value.dtype.newbyteorder("="))
        try:
            self._tensor(self.torch.from_numpy(package("numpy", "an array").array(value)), name)
        except TypeError:
            self._skip("arrays of text, objects or other types that are not numbers")

    def _nested(self, given: Nested, name: str) -> None:
        parts = [part.detach() for part in given.parts]
        elements = sum(part.numel() for part in parts)
        width, dtype = (parts[0].element_size(), name_of(parts[0].dtype)) if parts else (0, "F32")
        own = Tensor(name, dtype, given.shape, elements, elements * width)
        own.load = lambda: parts
        self.found.tensors.append(own)

    def _tensor(self, given: Any, name: str) -> None:
        states = ("callbacks.", "loops.", "lr_schedulers.")
        if self.is_of_lightning and given.numel() == 1 and name.startswith(states):
            return self._skip("values of Lightning's callbacks and loops, such as scores, which are not parameters")
        value = given.detach()
        parts, kind = [value], ""
        if value.layout == self.torch.sparse_coo:
            kind, parts = "sparse", [value._values(), value._indices()]
        elif value.layout in (self.torch.sparse_csr, self.torch.sparse_bsr):
            kind, parts = "sparse", [value.values(), value.crow_indices(), value.col_indices()]
        elif value.layout in (self.torch.sparse_csc, self.torch.sparse_bsc):
            kind, parts = "sparse", [value.values(), value.ccol_indices(), value.row_indices()]
        dtype = name_of(value.dtype)
        if value.is_quantized:
            kind, parts = "quantized", [value.int_repr()]
            dtype = str(value.dtype).replace("torch.", "")
        elements = parts[0].numel() * (2 if dtype == "F4" else 1)
        size = sum(one.numel() * one.element_size() for one in parts)
        own = Tensor(name, dtype, value.shape, elements, size)
        if value.device.type == "meta":
            own.why = "without values (device meta)"
        elif kind == "quantized":
            own.why = "quantized: its integers are never NaN or Inf"
        else:
            own.load = lambda: parts[:1]
        if not kind and own.load and value.untyped_storage().nbytes():
            own.place = (value.data_ptr(), size)
        own.is_parameter, own.requires_grad = isinstance(given, self.torch.nn.Parameter), bool(given.requires_grad)
        self.found.tensors.append(own)
        if kind == "sparse":
            self.found.notes.append("%s is sparse: its elements are the %d that are stored" % (name, elements))


def read_safetensors(path: str) -> File:
    opener = package("safetensors", "a safetensors file").safe_open
    found = File(path)
    try:
        held = opener(path, framework="pt", device="cpu").__enter__()
        found.metadata = dict(held.metadata() or {})
        for name in held.keys():
            row = held.get_slice(name)
            shape, dtype = list(row.get_shape()), str(row.get_dtype())
            elements = 1
            for length in shape:
                elements *= length
            own = Tensor(name, dtype, shape, elements, elements * BITS.get(dtype, 8) // 8)
            own.load = lambda name=name: [held.get_tensor(name)]
            if dtype.startswith("F6") or dtype not in BITS:
                own.load, own.why = None, "PyTorch has no type %s" % dtype
            found.tensors.append(own)
    except Exception as error:
        raise Unreadable("safetensors cannot read it: %s" % str(error).split("\n")[0]) from None
    return found


def read_numpy(path: str) -> File:
    numpy, torch = package("numpy", "a file of NumPy"), package("torch", "a file of NumPy")
    found = File(path)
    try:
        held = numpy.load(path, mmap_mode="r", allow_pickle=False)
        names = held.files if hasattr(held, "files") else ["(array)"]
        left_out = 0
        for name in names:
            try:
                array = held[name] if hasattr(held, "files") else held
            except ValueError:
                left_out += 1
                continue
            kind = array.dtype.newbyteorder("=")
            try:
                dtype = name_of(torch.from_numpy(numpy.zeros(0, kind)).dtype)
            except TypeError:
                left_out += 1
                continue
            own = Tensor(name, dtype, array.shape, array.size, array.nbytes)
            own.load = lambda name=name, kind=kind: [
                torch.from_numpy(numpy.array(held[name] if hasattr(held, "files") else held, dtype=kind))
            ]
            found.tensors.append(own)
    except Exception as error:
        raise Unreadable("NumPy cannot read it: %s" % str(error).split("\n")[0]) from None
    if left_out:
        found.notes.append("left out: %d arrays of text, objects or other types that are not numbers" % left_out)
    return found


def beginning(path: str) -> bytes:
    if not os.path.isfile(path):
        raise Unreadable("not a regular file" if os.path.exists(path) else "no such file or folder")
    with open(path, "rb") as file:
        return file.read(64)


def read_file(path: str, any_class: bool) -> File:
    try:
        start = beginning(path)
        for magic, why in OTHER_FORMATS.items():
            if start.startswith(magic):
                raise Unreadable(why)
        if path.endswith(".distcp"):
            raise Unreadable("a part of a distributed checkpoint (.distcp); give its folder, which has the file .metadata")
        kind = SUFFIXES.get(os.path.splitext(path)[1])
        if start.startswith(b"PK\x03\x04") and kind != "numpy":
            kind = "torch"
        elif start.startswith(b"\x93NUMPY"):
            kind = "numpy"
        elif start[8:9] == b"{":
            kind = "safetensors"
        if kind is None:
            raise Unreadable("neither a safetensors file, nor one of torch.save, numpy.save or numpy.savez")
        if kind == "torch":
            return read_torch(path, any_class)
        return read_safetensors(path) if kind == "safetensors" else read_numpy(path)
    except (OSError, Unreadable) as error:
        raise Unreadable("%s: %s" % (path, getattr(error, "strerror", None) or error)) from None


def read_json(path: str) -> Dict[str, Any]:
    try:
        start = beginning(path)
        if start.startswith(b"version https://git-lfs"):
            raise Unreadable(OTHER_FORMATS[b"version https://git-lfs"])
        with open(path, "rb") as file:
            held = json.loads(file.read(MOST_JSON + 1))
        if not isinstance(held, dict):
            raise Unreadable("not a JSON object")
        return held
    except (OSError, ValueError, Unreadable) as error:
        raise Unreadable("%s: %s" % (path, error)) from None


class Checkpoint:
    """One file, a folder of shards, or an adapter."""

    def __init__(self, path: str, any_class: bool = False) -> None:
        self.path, self.any_class = path, any_class
        self.files: List[File] = []
        self.notes: List[str] = []
        self.is_incomplete = False
        self.adapter: Optional[Dict[str, Any]] = None
        folder = path if os.path.isdir(path) else os.path.dirname(path)
        if os.path.isdir(path):
            self._folder(path)
        elif os.path.basename(path) == METADATA:
            self._distributed(folder)
        elif path.endswith(".json"):
            self._index(path)
        else:
            self._add(path)
        for number, file in enumerate(self.files):
            for tensor in file.tensors:
                tensor.file = number
            self.notes += ["%s: %s" % (os.path.basename(file.path), note) for note in file.notes]
        if any(os.path.basename(file.path).startswith("adapter_model") for file in self.files):
            self._adapter(os.path.join(folder, ADAPTER))

    def tensors(self) -> List[Tensor]:
        return [tensor for file in self.files for tensor in file.tensors]

    def by_name(self) -> Dict[str, Tensor]:
        """The tensors by name; of shards with the same names (tensor parallelism), with that of the file."""
        times: Dict[str, int] = {}
        for tensor in self.tensors():
            times[tensor.name] = times.get(tensor.name, 0) + 1
        named: Dict[str, Tensor] = {}
        for tensor in self.tensors():
            file = os.path.basename(self.files[tensor.file].path)
            named[tensor.name if times[tensor.name] == 1 else "%s:%s" % (file, tensor.name)] = tensor
        return named

    def _add(self, path: str) -> None:
        self.files.append(read_file(path, self.any_class))

    def _adapter(self, path: str) -> None:
        if not os.path.exists(path):
            self.adapter = {}
            self.notes.append("no %s beside the adapter" % ADAPTER)
            return
        held = read_json(path)
        modules = held.get("target_modules")
        self.adapter = {
            "peft_type": held.get("peft_type"),
            "base_model": held.get("base_model_name_or_path"),
            "r": held.get("r"),
            "lora_alpha": held.get("lora_alpha"),
            # PEFT stores a set, whose order depends on the writer's hashes.
            "target_modules": sorted(map(str, modules)) if isinstance(modules, list) else [modules] if modules else [],
            "modules_to_save": held.get("modules_to_save") or [],
        }

    def _index(self, path: str) -> None:
        held = read_json(path)
        of = held.get("weight_map")
        if not isinstance(of, dict):
            raise Unreadable("%s: an index has the key weight_map" % path)
        files = sorted(set(map(str, of.values())))
        for name in files:
            if name != os.path.basename(name) or name.startswith(".") or not name:
                raise Unreadable("%s: the file %r is not in the folder of the index" % (path, name))
            self._add(os.path.join(os.path.dirname(path), name))
        inside = {(os.path.basename(file.path), tensor.name) for file in self.files for tensor in file.tensors}
        for tensor, name in of.items():
            if (name, tensor) not in inside:
                raise Unreadable("%s: the tensor %r is not in %s" % (path, tensor, name))
        if len(inside) > len(of):
            self.notes.append("%d tensors of the files are not in the index" % (len(inside) - len(of)))
        total = (held.get("metadata") or {}).get("total_size")
        size = sum(tensor.bytes for tensor in self.tensors())
        if total is not None and total != size:
            self.notes.append("the index states %s bytes in total, and the files contain %d" % (total, size))

    def _folder(self, folder: str) -> None:
        names = sorted(os.listdir(folder))
        if METADATA in names:
            return self._distributed(folder)
        for end in (".safetensors.index.json", ".bin.index.json"):
            indexes = [name for name in names if name.endswith(end)]
            if len(indexes) > 1:
                raise Unreadable("%s: several indexes; name the one that is meant" % folder)
            if indexes:
                return self._index(os.path.join(folder, indexes[0]))
        of: Dict[str, List[str]] = {}
        for name in names:
            of.setdefault(SUFFIXES.get(os.path.splitext(name)[1], ""), []).append(name)
        safetensors, archives = of.get("safetensors", []), of.get("torch", [])
        numpy, states = of.get("numpy", []), [name for name in names if name.endswith("_states.pt")]
        adapter = [name for name in safetensors + archives if os.path.splitext(name)[0] == "adapter_model"]
        models = [name for name in archives if name not in states and not name.startswith(STATES_OF_RUN)]
        newest = self._newest_of_deepspeed(folder)
        if adapter and ADAPTER in names:
            chosen = adapter
        elif safetensors:
            chosen = safetensors
        elif newest and not models:
            self._left_out(len(archives))
            return self._folder(newest)
        else:
            chosen = models if newest else states or archives + numpy
        if chosen is safetensors or chosen is models:
            self._left_out(len(archives) - (len(models) if chosen is models else 0))
        if newest:
            self.notes.append("the checkpoint of DeepSpeed that `latest` names was left out")
        if any(name.endswith("_optim_states.pt") for name in chosen):
            self.notes.append(
                "the optimizer states of DeepSpeed, and with ZeRO stage 3 the parameters, are flat parts without the names of "
                "their parameters; zero_to_fp32.py writes the parameters to one file"
            )
        if not chosen:
            raise Unreadable("%s: %s" % (folder, self._nothing(folder, names)))
        for name in chosen:
            self._add(os.path.join(folder, name))

    def _left_out(self, count: int) -> None:
        if count:
            self.notes.append("%d archives of torch.save were left out" % count)

    @staticmethod
    def _nothing(folder: str, names: List[str]) -> str:
        if any(os.path.exists(os.path.join(folder, name)) for name in ORBAX):
            return (
                "a checkpoint of Orbax is not read; restore it, write its arrays with numpy.savez or "
                "safetensors.flax.save_file, and give that file"
            )
        if any(name.endswith(".distcp") for name in names):
            return "parts of a distributed checkpoint (.distcp) without the file .metadata, which names their tensors"
        return "no %s file, and no .metadata of a distributed checkpoint" % ", ".join(SUFFIXES)

    @staticmethod
    def _newest_of_deepspeed(folder: str) -> Optional[str]:
        try:
            with open(os.path.join(folder, "latest"), encoding="utf-8") as file:
                name = file.read(4096).strip()
            newest = os.path.join(folder, name)
            is_plain = name and name == os.path.basename(name) and not name.startswith(".")
            return newest if is_plain and any(own.endswith("_states.pt") for own in os.listdir(newest)) else None
        except (OSError, UnicodeDecodeError):
            return None

    def _distributed(self, folder: str) -> None:
        path = os.path.join(folder, METADATA)
        found = File(path)
        try:
            with open(path, "rb") as file:
                held = PlainUnpickler(file).load()
            tensors, stored = held.get_state("state_dict_metadata"), held.get_state("storage_data")
            others = 0
            for name, value in tensors.items():
                if not value.name.endswith(".TensorStorageMetadata"):
                    others += 1
                    continue
                shape = list(value.get_state("size").args[0])
                dtype = name_of(value.get_state("properties").state[0])
                elements = 1
                for length in shape:
                    elements *= length
                own = Tensor(name, dtype, shape, elements, elements * BITS.get(dtype, 8) // 8)
                own.why = "values of a distributed checkpoint are not read"
                found.tensors.append(own)
            sizes: Dict[str, int] = {}
            for info in (stored or {}).values():
                name = info.get_state("relative_path")
                if name != os.path.basename(name):
                    raise Unreadable("its values are in %r, which is not a file beside it" % name)
                sizes[name] = max(sizes.get(name, 0), info.get_state("offset") + info.get_state("length"))
        except Unreadable as error:
            raise Unreadable("%s: %s" % (path, error)) from None
        except Exception as error:
            raise Unreadable("%s: no metadata of torch.distributed.checkpoint: %r" % (path, error)) from None
        found.notes.append(
            "python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER out.pt writes the values to one file, "
            "which can be read completely"
        )
        if others:
            found.notes.append("left out: %d values that are not tensors" % others)
        self.files.append(found)
        missing, short = [], []
        for name, size in sorted(sizes.items()):
            try:
                self.files.append(File(os.path.join(folder, name)))
                if self.files[-1].size < size:
                    short.append(name)
            except OSError:
                missing.append(name)
        for names, what in ((missing, "cannot be opened"), (short, "are shorter than the metadata state")):
            if names:
                self.is_incomplete = True
                more = " and %d more" % (len(names) - 8) if len(names) > 8 else ""
                self.notes.append("files with values that %s: %s%s" % (what, ", ".join(names[:8]), more))
