"""Counts NaN, Inf and zeros of tensors by their bits, and compares tensors, in pieces that fit into the cache."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Tuple

#: PyTorch's name of each type of element, its name in safetensors, and its bits.
DTYPES = {
    "bool": ("BOOL", 8), "uint8": ("U8", 8), "int8": ("I8", 8), "int16": ("I16", 16), "uint16": ("U16", 16),
    "int32": ("I32", 32), "uint32": ("U32", 32), "int64": ("I64", 64), "uint64": ("U64", 64),
    "float4_e2m1fn_x2": ("F4", 4), "float8_e5m2": ("F8_E5M2", 8), "float8_e4m3fn": ("F8_E4M3", 8),
    "float8_e8m0fnu": ("F8_E8M0", 8), "float8_e4m3fnuz": ("F8_E4M3FNUZ", 8), "float8_e5m2fnuz": ("F8_E5M2FNUZ", 8),
    "float16": ("F16", 16), "bfloat16": ("BF16", 16), "float32": ("F32", 32), "float64": ("F64", 64),
    "complex32": ("C32", 32), "complex64": ("C64", 64), "complex128": ("C128", 128),
}
#: Bits of an element by its name in safetensors; PyTorch has no type of six bits.
BITS = dict(DTYPES.values(), F6_E2M3=6, F6_E3M2=6)
#: Bits of Inf without the sign, above which only NaN is: IEEE 754, and the OCP 8-bit format E5M2.
INF = {"F16": 0x7C00, "BF16": 0x7F80, "F32": 0x7F800000, "F64": 0x7FF << 52, "F8_E5M2": 0x7C}
#: The one pattern that is NaN in the 8-bit formats without Inf, without the sign in E4M3.
NAN = {"F8_E4M3": 0x7F, "F8_E8M0": 0xFF, "F8_E4M3FNUZ": 0x80, "F8_E5M2FNUZ": 0x80}
REAL = {"C32": "F16", "C64": "F32", "C128": "F64"}
#: Elements that one call counts: a quarter of a megabyte of 16-bit elements.
BLOCK = 1 << 17
#: Elements that one thread is given at a time.
PIECE = 1 << 23


class Found(NamedTuple):
    """Elements that are NaN, infinite and zero; of a complex element, each part counts."""

    nan: int = 0
    inf: int = 0
    zero: int = 0


class Difference(NamedTuple):
    elements: int
    #: Elements whose bits differ.
    differing: int
    #: The largest absolute difference of finite elements; None where none differ, or the type has no numbers.
    max_abs: Optional[float]


def name_of(dtype: Any) -> str:
    """The name as in safetensors; of a type that this table does not have, that of PyTorch."""
    own = str(dtype).replace("torch.", "")
    return DTYPES.get(own, (own, 0))[0]


def flat(tensor: Any) -> Any:
    """The elements as one row, without a copy where they lie side by side in any order; None for one with repetitions."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    sizes = sorted(zip(tensor.stride(), tensor.shape))
    expected = 1
    for stride, length in sizes:
        if length > 1 and stride != expected:
            break
        expected *= length
    else:
        return tensor.as_strided((tensor.numel(),), (1,))
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        return None
    return tensor.reshape(-1)


def bits_of(torch: Any, tensor: Any) -> Tuple[str, Any]:
    """The name of the type of a row of elements, and the row as integers."""
    name = name_of(tensor.dtype)
    if name in REAL:
        name, tensor = REAL[name], torch.view_as_real(tensor).view(-1)
    width = tensor.element_size()
    return name, tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[width])


def count(torch: Any, tensor: Any) -> Found:
    """Counts the elements of a row."""
    name, bits = bits_of(torch, tensor)
    block = torch.empty(min(BLOCK, bits.numel()), dtype=bits.dtype)
    nan = inf = zero = 0
    has_sign = name in INF or name == "F8_E4M3"
    size = torch.iinfo(bits.dtype).max if bits.dtype != torch.uint8 else 0x7F
    for part in bits.split(BLOCK):
        if name == "F4":
            zero += sum(int((part & mask == 0).sum()) for mask in (0x07, 0x70))
            continue
        if has_sign:
            part = torch.bitwise_and(part, size, out=block[: part.numel()])
        if name in INF and int(part.max()) >= INF[name]:
            nan, inf = nan + int((part > INF[name]).sum()), inf + int((part == INF[name]).sum())
        elif name in NAN and int(part.max()) >= NAN[name]:
            nan += int((part == NAN[name]).sum())
        if name != "F8_E8M0":
            # That format has powers of two only.
            zero += part.numel() - int(torch.count_nonzero(part))
    return Found(nan, inf, zero)


def compare(torch: Any, before: Any, after: Any) -> Difference:
    """Compares two rows of one type and length."""
    name = name_of(before.dtype)
    has_numbers = BITS.get(name, 0) >= 16 and name not in REAL or name in ("BOOL", "U8", "I8")
    differing, most = 0, None
    rows = zip(*(bits_of(torch, row)[1].split(BLOCK) for row in (before, after)))
    for number, (old, new) in enumerate(rows):
        different = int((old != new).sum())
        if not different:
            continue
        differing += different
        if has_numbers:
            here = slice(number * BLOCK, (number + 1) * BLOCK)
            apart = (after[here].double() - before[here].double()).abs()
            apart = apart[apart.isfinite()]
            if apart.numel():
                most = max(most or 0.0, float(apart.max()))
    return Difference(before.numel() * (2 if name == "F4" else 1), differing, most)


def yield_to_others() -> None:
    """Gives this thread the lowest priority."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)


class Readers:
    """Threads of the lowest priority that go through the pieces of one row after another."""

    def __init__(self, torch: Any, threads: int) -> None:
        self.torch, self.threads = torch, threads
        # The pieces are the parallel part; PyTorch's own threads would wait for each other in each block.
        torch.set_num_threads(1)
        self.pool = ThreadPoolExecutor(threads, initializer=yield_to_others)

    def _map(self, work: Callable[..., Any], *rows: Any) -> Iterator[Any]:
        pieces = [row.split(PIECE) for row in rows]
        calls = [[self.torch] * len(pieces[0]), *pieces]
        return self.pool.map(work, *calls)

    def count(self, row: Any) -> Found:
        if not row.numel():
            return Found()
        return Found(*map(sum, zip(Found(), *self._map(count, row))))

    def compare(self, before: Any, after: Any) -> Difference:
        found: List[Difference] = list(self._map(compare, before, after))
        most = [one.max_abs for one in found if one.max_abs is not None]
        differing = sum(one.differing for one in found)
        return Difference(sum(one.elements for one in found), differing, max(most) if most else None)
