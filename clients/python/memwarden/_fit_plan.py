"""What is known of phases that have not occurred: the longest batch, evaluations and saves."""

from __future__ import annotations

import math
import os
import sys
import weakref
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple, Union

from ._base import _guarded, _size
from ._fit_size import Batch
from ._identity import _Identity
from ._process import _bytes, _local

# Samples of a plain list whose lengths are read.
MOST_SAMPLES = 200_000
# Batches whose lengths are compared with those of texts; how far the quartiles of both may differ: those of 16 batches of 2 or 4
# samples with a deviation of 40 % differ by up to 1.4 by chance.
COMPARED, ALIKE = 16, 1.5
# The 90th percentile of the error of the longest text's tokens; it was 8 to 11 % of 343 random sets of data.
TEXT_ERROR = 0.1
# Parts of the names of attributes that hold tokenized samples.
_NAMES = ("ids", "token", "example", "sample", "data")
# Copies of the logits of one batch that are alive in the loss: in fp32, shifted, and the logarithms.
_LOSS_COPIES = 3
# The largest file that transformers writes of a model, in bytes, before it starts another.
_LARGEST_FILE = 50 * 10**9

MOUNTS = "/proc/self/mountinfo"

Place = Optional[int]


class Phase(NamedTuple):
    """One prediction; `place` is an ordinal, None for the host, `shm` or `disk`."""

    phase: str
    place: Union[Place, str]
    peak: Optional[float]
    p90: Optional[float]
    size: Optional[Dict[str, Any]]
    basis: str
    # Whether it can take more than is known.
    least: bool = False


class Largest(NamedTuple):
    """The largest micro-batch that is still to come, how that is known, how much longer it can be (90th percentile), and whether it is
    only the largest so far."""

    batch: Batch
    source: str
    longer: float = 0.0
    so_far: bool = False


class Plan:
    """Fed by hooks and callbacks; `examine` and `phases` do the work."""

    def __init__(self) -> None:
        self.stale = False
        # The folder of checkpoints, where it is known; the one that was looked up last, and where it really is; of programs without a
        # Trainer, that of the largest file that was saved, with its size.
        self.folder, self._resolved = "", ("", "")
        self._saved: Tuple[str, float] = ("", 0.0)
        # Of the model, see `_sizes`: read once, between two steps, since FSDP2 gathers its parameters within a step.
        self._sizes: Optional[Tuple[int, int, int]] = None
        # Bytes that a save writes to files that are memory.
        self.in_memory = 0
        # Bytes of the logits of one token (of one sample, where there are no tokens).
        self.logits: Optional[float] = None
        # The first loader; the one that gave the last batch, and that of the last micro-batch of training, of an evaluation.
        self._loader_ref: Any = None
        self.latest_ref: Any = None
        self.training_ref: Any = None
        self._evaluation_ref: Any = None
        self._given = 0
        # The first iterator of all.
        self._first_ref: Any = None
        self._trainer: Any = None
        self._lightning = False
        self._model: Any = None
        self._optimizers: Callable[[], List[Any]] = list
        self._longest: Optional[Tuple[int, str]] = None
        # The data of the evaluation, by its identity, and its longest sample.
        self._evaluated: Optional[Tuple[int, Optional[int]]] = None
        # Characters of the samples' texts, in order of size; the lengths of the first batches.
        self._characters: List[int] = []
        self._lengths_seen: List[int] = []
        self._longest_first = False
        self._same: Optional[Batch] = None
        self._differ = False

    # -- facts

    def loading(self, loader: Any) -> None:
        """An iterator of a DataLoader gives a batch; the one before a micro-batch of training counts."""
        if self.latest_ref is not None and self.latest_ref() is loader:
            self._given += 1
            return
        self.latest_ref, self._given = weakref.ref(loader), 1
        if self._first_ref is None:
            self._first_ref = self.latest_ref
        if self._loader_ref is None or self._loader_ref() is None:
            self._loader_ref = self.latest_ref

    def first_pass_left(self) -> Optional[int]:
        """Batches that the first pass over the data has still to give: a data set that keeps what it reads grows until then."""
        if self._first_ref is None or self._first_ref is not self.latest_ref:
            return None
        known = self.batches(training=True)
        return known[0] - known[1] if known is not None and known[0] > known[1] else None

    def batches(self, training: bool = False) -> Optional[Tuple[int, int]]:
        """Of the loader that gave the last batch: how many it has, and how many it has given."""
        loader = None if self.latest_ref is None else self.latest_ref()
        trainer = self._trainer() if self._trainer is not None and self._lightning else None
        try:
            if loader is None:
                return None
            count = len(loader)
            if trainer is not None and not training:
                # Lightning ends an evaluation earlier.
                count = min([count, *(int(each) for each in trainer.num_val_batches)])
            return count, self._given
        except Exception:
            return None  # Of a stream.

    def evaluated(self) -> Optional[Tuple[int, int]]:
        """The same for an evaluation that begins; None where it does not read a loader: the batches are those of training."""
        if self.latest_ref is self.training_ref and self.latest_ref is not self._evaluation_ref:
            return None
        self._evaluation_ref = self.latest_ref
        return self.batches()

    def model(self, model: Any, optimizers: Callable[[], List[Any]]) -> None:
        """Of modules within each other the one with the most parameters, and of these the first."""
        known = self._model() if self._model is not None else None
        count = sum(1 for _ in model.parameters())
        if known is None or count > sum(1 for _ in known.parameters()):
            self._model, self._optimizers, self._sizes = weakref.ref(model), optimizers, None

    def trainer(self, trainer: Any, lightning: bool = False) -> None:
        self._trainer, self._lightning, self.stale = weakref.ref(trainer), lightning, True

    def saved(self, path: Any) -> None:
        """A file, or a folder, was written: the folder of the largest file counts."""
        path = os.path.abspath(os.fspath(path))
        try:
            size = math.inf if os.path.isdir(path) else os.path.getsize(path)
        except OSError:
            return  # In a store of objects.
        if size >= self._saved[1]:
            self._saved = os.path.dirname(path), size

    @_guarded(False)
    def moved(self) -> bool:
        """Whether the folder is another one than at the last call; in the monitor's thread, since a file system may hang."""
        folder = self._folder_of(self._trainer() if self._trainer is not None else None)
        if folder == self._resolved[0]:
            return False
        self._resolved = folder, os.path.realpath(folder)
        return True

    def output(self, output: Any, batch: Optional[Batch]) -> None:
        """What the model returned for a micro-batch of training."""
        if batch is not None:
            if batch.length and len(self._lengths_seen) < COMPARED:
                self._lengths_seen.append(batch.length)
            self._differ = self._differ or (self._same is not None and self._same != batch)
            self._same = batch
        if self.logits is not None or batch is None or not batch.units:
            return
        logits: Any = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
        if hasattr(logits, "element_size"):
            # Trainers convert them to fp32.
            per = logits.numel() * max(4, logits.element_size())
            self.logits = per / batch.units

    # -- the longest batch

    @_guarded()
    def examine(self) -> None:
        """Reads the lengths of the data, where that is cheap; in the monitor's thread."""
        self.stale = False
        loader = None if self._loader_ref is None else self._loader_ref()
        if loader is not None and self._longest is None:
            self._longest = self._lengths(loader)
            if self._longest is None:
                self._characters = _characters(getattr(loader, "_dataset", None))

    def _lengths(self, loader: Any) -> Optional[Tuple[int, str]]:
        sampler = getattr(loader, "_index_sampler", None)
        for each in (sampler, getattr(sampler, "sampler", None)):
            lengths = getattr(each, "lengths", None)
            if isinstance(lengths, (list, tuple)) and lengths:
                self._longest_first = "LengthGrouped" in type(each).__name__
                return int(max(lengths)), "the longest sample by the sampler's lengths"
        dataset: Any = getattr(loader, "_dataset", None)
        stated = getattr(dataset, "lengths", None)
        if isinstance(stated, (list, tuple)) and stated and len(stated) == len(dataset):
            longest: Optional[int] = int(max(stated))
        else:
            longest = _longest(dataset)
        if longest is None:
            return None
        collate = getattr(loader, "_collate_fn", None)
        collate = getattr(collate, "data_collator", collate)
        multiple = getattr(collate, "pad_to_multiple_of", None)
        if isinstance(multiple, int) and multiple > 0:
            longest = -(-longest // multiple) * multiple
        return longest, "the longest sample of the data"

    def largest(self, seen: Batch, batches: int) -> Largest:
        if self._longest is not None and seen.length and seen.samples:
            longest, source = self._longest
            if seen.samples * longest > seen.units:
                return Largest(Batch(seen.samples * longest, seen.samples, longest), source)
            if longest == seen.length:
                return Largest(seen, "the largest batch, by " + source)
            # What was read is not what the batches are made of.
        longest_text = self._longest_text(seen.samples or 1)
        if longest_text is not None and seen.samples and longest_text > (seen.length or 0):
            batch = Batch(seen.samples * longest_text, seen.samples, longest_text)
            return Largest(batch, "about the longest text of the data", TEXT_ERROR)
        if not self._differ and batches > 1:
            return Largest(seen, "all %d batches so far have the same size" % batches, so_far=True)
        chance = 100.0 / (batches + 1)
        words = "the largest of %d batches so far; a larger one comes with probability %.1f %% per batch"
        return Largest(seen, words % (batches, chance), so_far=True)

    def _longest_text(self, samples: int) -> Optional[int]:
        """The tokens of the longest text, if the lengths of the batches are distributed as those of the texts are."""
        lengths, texts = sorted(self._lengths_seen), self._characters
        # Texts that are cut have the same length.
        if len(lengths) < COMPARED or not texts or lengths.count(lengths[-1]) > 2:
            return None
        # Of each batch, the longest of its samples counts.
        quartiles = [(lengths[int(q * len(lengths))], texts[int(q ** (1 / samples) * len(texts))]) for q in (0.25, 0.5, 0.75)]
        rates = [length / max(1, characters) for length, characters in quartiles]
        return round(texts[-1] * sum(rates) / len(rates)) if max(rates) <= ALIKE * min(rates) else None

    def due_step(self, last: int) -> Optional[int]:
        return last + 1 if self._longest_first and last < 1 else None

    # -- evaluation, generation and save

    def phases(
        self, places: List[Place], held: Callable[[Place], Optional[int]], identity: _Identity
    ) -> Iterator[Phase]:
        model = self._model() if self._model is not None else None
        trainer = self._trainer() if self._trainer is not None else None
        if trainer is not None and places:
            yield from self._evaluation(trainer, places, held)
        if model is not None:
            yield from self._save(model, trainer, places, held, identity)

    def _evaluation(self, trainer: Any, places: List[Place], held: Callable[[Place], Optional[int]]) -> Iterator[Phase]:
        place = places[0]
        now = held(place)
        if now is None:
            return
        if self._lightning:
            if getattr(trainer, "enable_validation", False):
                yield Phase("evaluation", place, None, None, None, "what it keeps of each batch is not known")
            return
        args = trainer.args
        strategy = str(getattr(args, "eval_strategy", getattr(args, "evaluation_strategy", "no")))
        if strategy.rsplit(".", 1)[-1].lower() == "no" or getattr(trainer, "eval_dataset", None) is None:
            return
        if getattr(args, "predict_with_generate", False):
            yield Phase("generation", place, None, None, None, "the length of generated texts is not known")
            yield Phase("evaluation", place, None, None, None, "it generates texts, whose length is not known")
            return
        if self.logits is None or self._same is None:
            yield Phase("evaluation", place, None, None, None, "the model returns no logits")
            return
        samples = int(args.per_device_eval_batch_size)
        length = self._same.length
        if length:
            # Lengths that are shorter than the batches are not those of samples.
            known = (self._longest_of_evaluation(trainer.eval_dataset), self._longest[0] if self._longest else None)
            length = next((each for each in known if each is not None and each >= length), length)
        one = self.logits * samples * (length or 1)
        basis = "logits of %d x %s tokens, %s a batch" % (samples, length or "?", _size(one))
        keeps = getattr(trainer, "compute_metrics", None) is not None and not args.prediction_loss_only
        if not keeps:
            fixed = now + one * _LOSS_COPIES
            yield Phase("evaluation", place, fixed, fixed + one, None, basis + "; none are kept")
            return
        count = _batches(trainer.eval_dataset, samples, args)
        steps = args.eval_accumulation_steps
        if getattr(trainer, "preprocess_logits_for_metrics", None) is not None:
            yield Phase("evaluation", place, None, None, None, "the logits are processed before they are kept")
            return
        if count is None:
            yield Phase("evaluation", place, None, None, None, "the number of batches is not known")
            return
        # On the host, moving to it saves nothing.
        kept = count if place is None or not steps else min(count, int(steps))
        # A concatenation holds what was kept before beside its result.
        twice = 2 if getattr(args, "eval_do_concat_batches", True) else 1
        fixed = now + one * _LOSS_COPIES
        size = {"unit": "batches", "units": kept, "samples": samples, "fixed": int(fixed), "per_unit": one * twice}
        peak = fixed + one * twice * kept
        basis += ", %d of %d batches kept" % (kept, count)
        yield Phase("evaluation", place, peak, peak + one, size, basis)

    def _longest_of_evaluation(self, dataset: Any) -> Optional[int]:
        """Read once."""
        if self._evaluated is None or self._evaluated[0] != id(dataset):
            self._evaluated = id(dataset), _longest(dataset)
        return self._evaluated[1]

    def _save(
        self, model: Any, trainer: Any, places: List[Place], held: Callable[[Place], Optional[int]], identity: _Identity
    ) -> Iterator[Phase]:
        if self._sizes is None:
            self._sizes = _sizes(model)
        whole, local, tensor = self._sizes
        state, largest = 0, 0
        for optimizer in self._optimizers():
            for each in (getattr(optimizer, "state", None) or {}).values():
                sizes = [_bytes(value) for value in each.values() if hasattr(value, "element_size")]
                state += sum(sizes)
                largest = max([largest, *sizes])
        if getattr(getattr(trainer, "args", None), "save_only_model", False):
            state = 0
        sharded = local < whole
        first = identity.hello()["rank"] == 0
        # Each rank writes its shard, or the first one all.
        files = (local if sharded else whole) + state
        most = files * whole / max(1, local) if sharded and first else files
        self.folder = folder = self._folder_of(trainer)
        known, real = self._resolved
        real = real if known == folder else os.path.abspath(folder)
        writes = first or sharded
        self.in_memory = files if folder and writes and is_in_memory(real) else 0
        host = held(None)
        if host is not None:
            # safetensors copies the tensors of a file from a device, torch.save one after another.
            gathered = whole if sharded and first else 0
            # From the host, tensors are written as they are.
            copied = any(place is not None for place in places)
            copy = min(whole, _LARGEST_FILE) + max(tensor, largest) if copied else 0
            # A program of its own can also write it to memory first.
            own = trainer is None and not self._saved[0]
            basis = "how it is saved is not known before the first time; " if own else ""
            basis += "state dict of %s" % _size(whole)
            if self._lightning and first:
                # Lightning writes the file from a buffer with the whole checkpoint, which grows by an eighth.
                copy = files
                basis = "buffer with the checkpoint of %s" % _size(files)
            if gathered:
                basis += ", gathered on this rank"
            if self.in_memory:
                basis += ", files of %s in memory" % _size(files)
            peak = host + max(gathered, copy) + self.in_memory
            spread = whole if sharded else files / 8 if self._lightning else max(tensor, largest)
            yield Phase("save", None, peak, peak + spread, None, basis, own)
        if writes and (trainer is not None or self._saved[0]):
            medium = "shm" if (real + "/").startswith("/dev/shm/") else "disk"
            basis = "model %s, optimizer %s" % (_size(files - state), _size(state))
            if sharded:
                basis += " of this rank; the whole model %s" % _size(whole)
            yield Phase("save", medium, files, most * 1.01 + (1 << 20), None, basis)

    def _folder_of(self, trainer: Any) -> str:
        if trainer is None:
            return self._saved[0]
        if self._lightning:
            return str(getattr(getattr(trainer, "checkpoint_callback", None), "dirpath", None) or trainer.default_root_dir)
        return str(getattr(getattr(trainer, "args", None), "output_dir", None) or "")


def _sizes(model: Any) -> Tuple[int, int, int]:
    """Bytes of the whole model, of the part of this rank, and of the largest tensor."""
    tensors = [*model.parameters(), *(each for _, each in model.named_buffers())]
    # Of a distributed tensor, `numel` is that of the whole.
    sizes = [int(each.numel()) * int(each.element_size()) for each in tensors]
    return sum(sizes) + _flattened(model), sum(_bytes(each) for each in tensors), max(sizes, default=0)


def _flattened(model: Any) -> int:
    """Bytes of the flat parameters of FSDP1 that other ranks hold: neither it nor its views state the size of the whole."""
    each = (getattr(module, "_flat_param", None) for module in model.modules())
    flats = {id(flat): flat for flat in each if flat is not None}.values()
    sizes = ((flat.numel(), flat._unpadded_unsharded_size.numel(), flat.element_size()) for flat in flats)
    return sum(max(0, int(whole) - int(local)) * int(size) for local, whole, size in sizes)


def is_in_memory(path: str) -> bool:
    """Whether files there are memory of the host and of the cgroup: those of a tmpfs, such as /dev/shm."""
    longest, kind = "", ""
    try:
        with open(MOUNTS, encoding="utf-8", errors="replace") as file:
            for line in file:
                mount, _, about = line.partition(" - ")
                point = mount.split()[4].replace("\\040", " ")
                # The last one at a point hides those before it.
                if len(point) >= len(longest) and (path + "/").startswith(point.rstrip("/") + "/"):
                    longest, kind = point, about.split()[0]
    except (OSError, IndexError):
        return False
    return kind in ("tmpfs", "ramfs")


def free_of(folder: str) -> Optional[int]:
    """Bytes that are free for this user where a folder is, or will be made; None where no folder is known."""
    path = os.path.abspath(folder) if folder else ""
    while path:
        try:
            found = os.statvfs(path)
        except (FileNotFoundError, NotADirectoryError):
            path = os.path.dirname(path)
            continue
        except OSError:
            return None
        return found.f_bavail * found.f_frsize
    return None


def _batches(dataset: Any, samples: int, args: Any) -> Optional[int]:
    try:
        ranks = max(1, int(getattr(args, "world_size", 1)))
        return -(-len(dataset) // (samples * ranks))
    except Exception:
        return None


def _longest(dataset: Any) -> Optional[int]:
    """Of the samples that a data set holds in memory, without loading one."""
    if type(dataset).__name__ == "Subset" and isinstance(getattr(dataset, "indices", None), (list, tuple)):
        inner = dataset.dataset
        chosen = [inner[index] for index in dataset.indices[: MOST_SAMPLES + 1]] if isinstance(inner, (list, tuple)) else None
        return None if chosen is None else _longest_of_list(chosen)
    if isinstance(dataset, (list, tuple)):
        return _longest_of_list(dataset)
    longest = _longest_of_table(dataset)
    if longest is not None:
        return longest
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__dict__"):
        return None
    attributes = list(vars(dataset).items())
    longest = None
    for name, value in attributes:
        try:
            found = _longest_of_attribute(name, value, len(dataset))
        except Exception:
            continue  # A number that imitates a list.
        longest = found if longest is None else max(longest, found or 0)
    return longest


def _characters(dataset: Any) -> List[int]:
    """Characters of each text of a data set that holds texts in memory, in order; none where it does not."""
    if not hasattr(dataset, "__len__"):
        return []
    held = [dataset, *vars(dataset).values()] if hasattr(dataset, "__dict__") else [dataset]
    for texts in held:
        if not isinstance(texts, (list, tuple)) or not 0 < len(texts) <= MOST_SAMPLES or len(texts) != len(dataset):
            continue
        # Of a pair, the text is the longer one.
        each = texts if isinstance(texts[0], str) else [max(_texts(sample), key=len, default="") for sample in texts]
        counts = sorted(len(text) for text in each if isinstance(text, str))
        if counts[-1:] > [0]:
            return counts
    return []


def _texts(sample: Any) -> List[str]:
    values: Any = sample.values() if isinstance(sample, dict) else sample if isinstance(sample, (list, tuple)) else ()
    return [each for each in values if isinstance(each, str)]


def _longest_of_table(dataset: Any) -> Optional[int]:
    """The longest `input_ids` of a table of datasets, from the offsets of its lists."""
    compute = sys.modules.get("pyarrow.compute")
    table = getattr(dataset, "data", None)
    if compute is None or table is None or not hasattr(table, "column_names"):
        return None
    if "length" in table.column_names:
        lengths = table.column("length")
    elif "input_ids" in table.column_names:
        lengths = compute.list_value_length(table.column("input_ids"))
    else:
        return None
    # The rows of the table that are in the data set: it was shuffled, split, or a part was selected.
    rows = getattr(dataset, "_indices", None)
    longest = compute.max(lengths if rows is None else lengths.take(rows.column(0))).as_py()
    return None if longest is None else int(longest)


def _longest_of_attribute(name: str, value: Any, count: int) -> Optional[int]:
    """Of samples that were tokenized before: a list of them, or a table with their `input_ids`."""
    if isinstance(value, Mapping):
        name, value = "input_ids", value.get("input_ids")
    if not any(part in name for part in _NAMES) or not hasattr(value, "__len__") or len(value) != count:
        return None
    if isinstance(value, (list, tuple)):
        return _longest_of_list(value)
    shape: Any = getattr(value, "shape", ())
    return int(shape[1]) if len(shape) == 2 and "int" in str(getattr(value, "dtype", "")) else None


def _longest_of_list(samples: Any) -> Optional[int]:
    if len(samples) > MOST_SAMPLES:
        return None
    longest = 0
    for each in samples:
        length = _length(each.get("input_ids") if isinstance(each, dict) else each)
        if length is None:
            return None
        longest = max(longest, length)
    return longest


def _length(ids: Any) -> Optional[int]:
    """Of one sample: whole numbers, in a list or a tensor. A pair of a text and its label is none."""
    if isinstance(ids, (list, tuple)):
        return len(ids) if not ids or isinstance(ids[0], int) else None
    shape = getattr(ids, "shape", ())
    is_whole = "int" in str(getattr(ids, "dtype", ""))
    return int(_local(ids).shape[-1]) if is_whole and len(shape) in (1, 2) else None
