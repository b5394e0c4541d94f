"""`python -m memwarden params`: shapes, types, sizes by part, NaN, Inf and zeros of parameter files, and their differences."""

import argparse
import json
import os
import sys
import time
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from ._checkpoints import Checkpoint, Tensor, Unreadable, package
from ._tensors import Difference, Found, Readers, flat

#: Grows when a key of the JSON changes its meaning or goes.
SCHEMA_VERSION = 2
#: Threads where none are asked for.
THREADS = 4
#: The exit code where files with values are missing or too short.
INCOMPLETE = 2
ABOUT = """
Reads safetensors (one file, or shards with their index), files of torch.save, PEFT adapters, .npz and .npy, and folders of
Hugging Face, DeepSpeed and torch.distributed.checkpoint; of the last one not the values. Files of torch.save and
safetensors are mapped and read tensor by tensor, by threads of the lowest priority. PyTorch's restricted reader reads
pickles; a file that names other functions is refused. Needs PyTorch 2.6 or later, and for such files safetensors and numpy.
Exit codes: 0 success, 1 an error, 2 a file with values of a distributed checkpoint is missing or too short."""


class Scan:
    """What was found in the values of the tensors of a checkpoint."""

    def __init__(self, readers: Optional[Readers], tensors: List[Tensor]) -> None:
        self.found: Dict[int, Found] = {}
        self.why: Dict[int, str] = {number: tensor.why for number, tensor in enumerate(tensors) if tensor.why}
        self.bytes, begin = 0, time.monotonic()
        for number, tensor in enumerate(tensors):
            if readers is None or tensor.load is None:
                continue
            total = Found()
            for row in map(flat, tensor.load()):
                if row is None:
                    self.why[number] = "a view with repetitions"
                    break
                self.bytes += row.numel() * row.element_size()
                total = Found(*map(sum, zip(total, readers.count(row))))
            else:
                self.found[number] = total
        self.seconds = time.monotonic() - begin


def shares(tensors: Iterable[Tensor], name: Callable[[Tensor], str]) -> List[Dict[str, Any]]:
    """Tensors, elements and bytes by a name, the most bytes first."""
    of: Dict[str, Dict[str, Any]] = {}
    for tensor in tensors:
        own = of.setdefault(name(tensor), {"name": name(tensor), "tensors": 0, "elements": 0, "bytes": 0})
        own["tensors"] += 1
        own["elements"] += tensor.elements
        own["bytes"] += tensor.bytes
    whole = sum(own["bytes"] for own in of.values())
    for own in of.values():
        own["ratio"] = own["bytes"] / whole if whole else None
    return sorted(of.values(), key=lambda own: (-int(own["bytes"]), str(own["name"])))


def prefix(name: str, depth: int) -> str:
    """The first components of a name, with a star for the number of a layer."""
    components = name.split(".")
    return ".".join("*" if one.isdigit() else one for one in components[: max(1, min(depth, len(components) - 1))])


def trainable(tensors: List[Tensor], is_adapter: bool, base: Optional[int]) -> Dict[str, Any]:
    """The trainable part of the parameters, as far as the files state it."""
    model = [tensor for tensor in tensors if tensor.part != "optimizer"]
    elements = sum(tensor.elements for tensor in model)
    if is_adapter:
        whole = None if base is None else base + elements
        return {"from": "adapter", "elements": elements, "of_elements": whole, "ratio": elements / whole if whole else None}
    if not any(tensor.requires_grad or tensor.is_parameter for tensor in model):
        return {"from": "not_told"}
    own = sum(tensor.elements for tensor in model if tensor.requires_grad)
    return {"from": "requires_grad", "elements": own, "of_elements": elements, "ratio": own / elements if elements else None}


def once(tensors: List[Tensor]) -> List[int]:
    """The numbers of the tensors, of those with the same elements (tied weights) the first one."""
    seen = set()
    numbers = []
    for number, tensor in enumerate(tensors):
        place = (tensor.file, tensor.place)
        if tensor.place is None or place not in seen:
            seen.add(place)
            numbers.append(number)
    return numbers


def told(checkpoint: Checkpoint, readers: Optional[Readers], options: argparse.Namespace) -> Dict[str, Any]:
    """The report on one checkpoint."""
    tensors = checkpoint.tensors()
    numbers = once(tensors)
    own = [tensors[number] for number in numbers]
    scan = Scan(readers, own)
    found = {numbers[place]: one for place, one in scan.found.items()}

    def row(number: int) -> Dict[str, Any]:
        tensor = tensors[number]
        made: Dict[str, Any] = {"name": tensor.name, "file": tensor.file, "dtype": tensor.dtype, "shape": tensor.shape}
        made.update(bytes=tensor.bytes, group=tensor.part, **(found[number]._asdict() if number in found else {}))
        return made

    largest = sorted(numbers, key=lambda number: (-tensors[number].bytes, tensors[number].name))
    summary: Dict[str, Any] = {
        "tensors": len(tensors),
        "tied_tensors": len(tensors) - len(own),
        "elements": sum(tensor.elements for tensor in own),
        "bytes": sum(tensor.bytes for tensor in own),
        "by_dtype": shares(own, lambda tensor: tensor.dtype),
        "by_group": shares(own, lambda tensor: tensor.part),
        "by_prefix": shares(own, lambda tensor: prefix(tensor.name, options.depth)),
        "largest": [row(number) for number in largest[: options.top]],
        "trainable": trainable(own, checkpoint.adapter is not None, options.base_elements),
    }
    if readers is not None:
        summary["values"] = values(found, scan, tensors, largest, options.top, row)
    report: Dict[str, Any] = {
        "path": checkpoint.path,
        "files": [
            {"file": file.path, "file_bytes": file.size, "tensors": len(file.tensors), "metadata": file.metadata}
            for file in checkpoint.files
        ],
        "notes": checkpoint.notes,
        "summary": summary,
        "all": [row(number) for number in range(len(tensors))],
    }
    if checkpoint.adapter is not None:
        report["adapter"] = checkpoint.adapter
    if readers is not None:
        report["scan"] = {"bytes": scan.bytes, "seconds": scan.seconds, "threads": readers.threads}
    return report


def values(
    found: Dict[int, Found],
    scan: Scan,
    tensors: List[Tensor],
    largest: List[int],
    top: int,
    row: Callable[[int], Dict[str, Any]],
) -> Dict[str, Any]:
    whys = list(scan.why.values())
    read = [number for number in largest if number in found and tensors[number].elements]
    counts = {number: found[number].nan + found[number].inf for number in read}
    bad = sorted((number for number in read if counts[number]), key=lambda number: -counts[number])
    zero = [number for number in read if not nonzero(found[number], tensors[number])]
    return {
        "scanned_tensors": len(found),
        "not_scanned": {why: whys.count(why) for why in sorted(set(whys))},
        "nan_elements": sum(one.nan for one in found.values()),
        "inf_elements": sum(one.inf for one in found.values()),
        "zero_elements": sum(one.zero for one in found.values()),
        "bad_tensors": len(bad),
        "bad": [row(number) for number in bad[:top]],
        "zero_tensors": len(zero),
        "zero": [row(number) for number in zero[:top]],
    }


def nonzero(found: Found, tensor: Tensor) -> int:
    """Elements that are not zero; of complex ones, each part."""
    return tensor.elements * (2 if tensor.dtype.startswith("C") else 1) - found.zero


def compared(before: Checkpoint, after: Checkpoint, readers: Optional[Readers]) -> Dict[str, Any]:
    """What differs between two checkpoints; with readers, also in their values."""
    old, new = before.by_name(), after.by_name()

    def side(name: str, tensor: Tensor) -> Dict[str, Any]:
        return {"name": name, "dtype": tensor.dtype, "shape": tensor.shape, "bytes": tensor.bytes}

    both = [name for name in old if name in new]
    same = [name for name in both if (old[name].dtype, old[name].shape) == (new[name].dtype, new[name].shape)]
    report: Dict[str, Any] = {
        "added": [side(name, tensor) for name, tensor in new.items() if name not in old],
        "removed": [side(name, tensor) for name, tensor in old.items() if name not in new],
        "changed": [
            {"before": side(name, old[name]), "after": side(name, new[name])} for name in both if name not in set(same)
        ],
        "same": len(same),
    }
    if readers is None:
        return report
    moved: List[Tuple[str, Difference]] = []
    report["compared"] = 0
    for name in same:
        loads = old[name].load, new[name].load
        if loads[0] is None or loads[1] is None:
            continue
        rows = [list(map(flat, load())) for load in loads if load is not None]
        pairs = list(zip(*rows))
        if any(one is None or other is None or one.numel() != other.numel() for one, other in pairs):
            continue
        report["compared"] += 1
        found = [readers.compare(one, other) for one, other in pairs]
        most = [one.max_abs for one in found if one.max_abs is not None]
        differing = sum(one.differing for one in found)
        if differing:
            whole = Difference(sum(one.elements for one in found), differing, max(most) if most else None)
            moved.append((name, whole))
    moved.sort(key=lambda one: -1.0 if one[1].max_abs is None else one[1].max_abs, reverse=True)
    report["values"] = [dict(name=name, **difference._asdict()) for name, difference in moved]
    return report


def shown_bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return "%d B" % count if unit == "B" else "%.1f %s" % (count, unit)
        count /= 1024
    return "%.1f TiB" % count


def clean(text: Any) -> str:
    """A name of a file's that cannot move the cursor of a terminal."""
    return "".join(one if one.isprintable() else "\\x%02x" % ord(one) for one in str(text))


def percent(ratio: Optional[float]) -> str:
    return "?" if ratio is None else "%.3g %%" % (ratio * 100)


def shape(lengths: Iterable[Optional[int]]) -> str:
    return "[%s]" % ", ".join("?" if one is None else str(one) for one in lengths)


class Text:
    """Lines of a report."""

    def __init__(self) -> None:
        self.lines: List[str] = []

    def say(self, line: str = "") -> None:
        self.lines.append(line)

    def table(self, title: str, rows: List[List[str]], left: Tuple[int, ...] = (0,)) -> None:
        """Rows of cells below a title; the cells of these columns are aligned to the left, the last one is."""
        if not rows:
            return
        self.say(title)
        widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
        for row in rows:
            cells = [
                cell.ljust(width) if place in left or place == len(row) - 1 else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(row, widths))
            ]
            self.say(("  " + "  ".join(cells)).rstrip())
        self.say()

    def checkpoint(self, report: Dict[str, Any], every: bool) -> None:
        summary = report["summary"]
        counts = summary["tensors"], len(report["files"]), summary["elements"], shown_bytes(summary["bytes"])
        self.say("%s: %s" % (clean(report["path"]), "{} tensors in {} files, {:,} elements, {}".format(*counts)))
        if summary["tied_tensors"]:
            self.say("  %d tensors with the elements of others (tied), counted once" % summary["tied_tensors"])
        self.say()
        for title, key in (("By part of the model", "by_group"), ("By prefix", "by_prefix"), ("By type", "by_dtype")):
            cells = []
            for own in summary[key]:
                count, elements = "%d tensors" % own["tensors"], "{:,} elements".format(own["elements"])
                cells.append([clean(own["name"]), count, elements, shown_bytes(own["bytes"]), percent(own["ratio"])])
            self.table(title, cells)
        self.rows("Every tensor" if every else "Largest", report["all"] if every else summary["largest"])
        self.values(summary.get("values"), report.get("scan"))
        adapter = report.get("adapter")
        if adapter is not None:
            known = [clean(adapter.get(key) or "?") for key in ("peft_type", "r", "lora_alpha", "base_model")]
            self.say("Adapter: %s, rank %s, alpha %s, of %s" % tuple(known))
            self.say("  modules: %s" % clean(", ".join(map(str, adapter.get("target_modules") or []))))
        self.trainable(summary["trainable"])
        if report["notes"]:
            self.say("\nRemarks")
            for note in report["notes"]:
                self.say("  " + clean(note))
        self.say()

    def rows(self, title: str, rows: List[Dict[str, Any]], with_counts: bool = False) -> None:
        cells = []
        for row in rows:
            counts = ["{:,} NaN".format(row["nan"]), "{:,} Inf".format(row["inf"])] if with_counts else []
            cells.append([shown_bytes(row["bytes"]), row["dtype"], shape(row["shape"]), *counts, clean(row["name"])])
        self.table(title, cells, (1, 2))

    def values(self, found: Optional[Dict[str, Any]], scan: Optional[Dict[str, Any]]) -> None:
        if found is None or scan is None:
            return self.say("Values were not read (--no-scan): NaN, Inf and zeros are not known.")
        if not found["scanned_tensors"]:
            self.say("Values: none were read; NaN, Inf and zeros are not known")
        elif not found["bad_tensors"] and not found["zero_tensors"]:
            self.say("Values: no NaN, no Inf, no tensor of zeros only; {:,} zeros".format(found["zero_elements"]))
        else:
            text = "Values: {nan_elements:,} NaN and {inf_elements:,} Inf in {bad_tensors} tensors; {zero_elements:,} zeros, "
            self.say((text + "{zero_tensors} tensors of zeros only").format(**found))
        speed = scan["bytes"] / max(scan["seconds"], 1e-9) / 1e9
        amount, threads = shown_bytes(scan["bytes"]), scan["threads"]
        text = "  %d tensors scanned, %s in %.2f s (%.1f GB/s) by %d threads"
        self.say(text % (found["scanned_tensors"], amount, scan["seconds"], speed, threads))
        for why, count in found["not_scanned"].items():
            self.say("  %d tensors not scanned: %s" % (count, clean(why)))
        self.say()
        self.rows("With NaN or Inf", found["bad"], True)
        self.rows("Zeros only", found["zero"])

    def trainable(self, told: Dict[str, Any]) -> None:
        if told["from"] == "not_told":
            self.say("Trainable: not stated in the file")
        elif told["of_elements"] is None:
            self.say("Trainable: {:,} parameters of the adapter; the share is known with --base".format(told["elements"]))
        else:
            why = "by requires_grad" if told["from"] == "requires_grad" else "adapter of adapter and base"
            text = "Trainable: {elements:,} of {of_elements:,} parameters ".format(**told)
            self.say("%s(%s), %s" % (text, percent(told["ratio"]), why))

    def comparison(self, report: Dict[str, Any], top: int) -> None:
        counts = tuple(len(report[key]) for key in ("changed", "added", "removed"))
        self.say("Compared: %d of the same shape and type, %d changed, %d added, %d removed\n" % (report["same"], *counts))

        def kind(side: Dict[str, Any]) -> str:
            return "%s %s" % (side["dtype"], shape(side["shape"]))

        for key in ("added", "removed"):
            cells = [[shown_bytes(side["bytes"]), kind(side), clean(side["name"])] for side in report[key][:top]]
            self.table(key.capitalize(), cells, (1,))
        cells = [
            ["%s -> %s" % (kind(one["before"]), kind(one["after"])), clean(one["before"]["name"])]
            for one in report["changed"][:top]
        ]
        self.table("Changed", cells)
        if "values" in report:
            self.say("Values: %d of %d tensors differ" % (len(report["values"]), report["compared"]))
            cells = []
            for one in report["values"][:top]:
                most = "in bits" if one["max_abs"] is None else "up to %.3e" % one["max_abs"]
                cells.append([most, "{differing:,} of {elements:,}".format(**one), clean(one["name"])])
            self.table("Largest differences", cells, (0, 1))
        if max(*counts, len(report.get("values", []))) > top:
            self.say("Lists have the first %d entries; --format json has all." % top)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m memwarden params",
        usage="%(prog)s [options] CHECKPOINT…\n       %(prog)s [options] compare CHECKPOINT OTHER",
        description=__doc__.split(": ", 1)[1] if __doc__ else None,
        epilog=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("checkpoint", nargs="+", metavar="CHECKPOINT", help="file, index or folder with parameters")
    made.add_argument("--format", choices=("text", "json"), default="text", help="format of the report")
    made.add_argument("--output", metavar="FILE", help="write the report to this file")
    made.add_argument("--top", type=int, default=10, metavar="N", help="maximum length of each list in the text (default 10)")
    made.add_argument("--depth", type=int, default=2, metavar="N", help="components of the prefixes (default 2)")
    made.add_argument("--tensors", action="store_true", help="list every tensor in the text; JSON has every tensor")
    made.add_argument("--no-scan", action="store_true", help="read no values; NaN, Inf and zeros are then unknown")
    made.add_argument("--threads", type=int, metavar="N", help="threads that read values (default: cores, at most 4)")
    made.add_argument("--difference", action="store_true", help="with compare: also by how much the values differ")
    made.add_argument("--base", metavar="CHECKPOINT", help="base model of an adapter, to report the trainable share")
    made.add_argument("--any-class", action="store_true", help="read files that name unknown classes; none is called")
    return made


def main(arguments: List[str]) -> int:
    own = parser()
    options = own.parse_intermixed_args(arguments)
    paths = options.checkpoint
    is_comparison = paths[0] == "compare"
    if is_comparison:
        paths = paths[1:]
        if len(paths) != 2:
            own.error("compare takes two checkpoints")
    elif options.difference:
        own.error("--difference is an option of compare")
    try:
        torch = package("torch", "memwarden params")
        threads = options.threads or min(os.cpu_count() or 1, THREADS)
        checkpoints = [Checkpoint(path, options.any_class) for path in paths]
        base = Checkpoint(options.base, options.any_class).tensors() if options.base else None
        kept = None if base is None else [base[number] for number in once(base) if base[number].part != "optimizer"]
        options.base_elements = None if kept is None else sum(tensor.elements for tensor in kept)
        readers = Readers(torch, max(1, threads))
        scan = None if options.no_scan else readers
        report: Dict[str, Any] = {"schema_version": SCHEMA_VERSION}
        report["checkpoints"] = [told(checkpoint, scan, options) for checkpoint in checkpoints]
        if is_comparison:
            report["comparison"] = compared(checkpoints[0], checkpoints[1], readers if options.difference else None)
    except Unreadable as error:
        print("memwarden: %s" % clean(error), file=sys.stderr)
        return 1
    if options.format == "json":
        text = json.dumps(report, indent=1, allow_nan=False)
    else:
        page = Text()
        for one in report["checkpoints"]:
            page.checkpoint(one, options.tensors)
        if is_comparison:
            page.comparison(report["comparison"], options.top)
        text = "\n".join(page.lines).rstrip()
    if options.output:
        with open(options.output, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    else:
        print(text)
    return INCOMPLETE if any(checkpoint.is_incomplete for checkpoint in checkpoints) else 0
