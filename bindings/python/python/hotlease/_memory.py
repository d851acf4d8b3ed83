"""`hotlease.RemoteMemory` and `hotlease.RemoteArray`: memory of other nodes. Imported on first use."""

from __future__ import annotations

import os
from typing import Any, Optional, Union

from hotlease import _core, _platform
from hotlease.errors import NotRunning

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeVar

    import numpy

    Own = TypeVar("Own", bound="RemoteMemory")
    # An object with the buffer protocol. (numpy's arrays are of `collections.abc.Buffer` from Python 3.12 on.)
    Buffer = Any


def _bytes_of(buffer: Buffer) -> memoryview:
    """The bytes of a contiguous object."""
    view = memoryview(buffer)
    if view.nbytes == 0:
        # Views of no bytes cannot be cast.
        return memoryview(bytearray())
    if not view.c_contiguous:
        raise BufferError("the bytes must be contiguous: pass a copy (numpy.ascontiguousarray)")
    return view.cast("B")


class Copy:
    """A copy that was begun. Its object must not be used until `wait` has returned."""

    def __init__(self, copy: _core.MemoryCopy) -> None:
        self._copy = copy

    def wait(self) -> None:
        """Waits until the copy has ended. Raises its error, once."""
        self._copy._wait()


class RemoteMemory(_core.MemoryBase):
    """Memory of other nodes, or of this node, that the program reads and writes. It is leased without a core, and all zero
    at first.

    It is idle memory, which its nodes can take back at any time: then each call raises `MemoryLost`, and the bytes are
    gone. Any number of threads may use it at once; copies run without Python's lock. A forked child cannot use it.

    Parameters
    ----------
    size
        Size in bytes.
    nodes
        Number of nodes over which it is spread, each with the same share, at most 8. If fewer nodes have room, a node has
        several shares. Default: 1.
    stripe
        Bytes that are together on one node before the next node follows: a power of two. Default: 1 MiB.
    patience
        Seconds to wait until a node has room. Default: 0.
    manager, identity, runtime_dir, transport, label, job, ttl
        As for an `Executor`. If none of them names a platform and none is running, the platform is started.

    Raises
    ------
    Refused
        No node has that much memory to offer.

    Examples
    --------
    >>> with hotlease.RemoteMemory(1 << 20) as memory:
    ...     memory[100:105] = b"hello"
    ...     memory[100:105]
    b'hello'
    """

    def __new__(
        cls: type[Own],
        size: int,
        *,
        nodes: int = 1,
        stripe: int = 1 << 20,
        patience: float = 0.0,
        manager: Optional[str] = None,
        identity: Union[str, os.PathLike[str], None] = None,
        runtime_dir: Union[str, os.PathLike[str], None] = None,
        transport: Optional[str] = None,
        label: Optional[str] = None,
        job: Optional[str] = None,
        ttl: Optional[float] = None,
    ) -> Own:
        given = {
            "manager": manager,
            "identity": identity,
            "runtime_dir": runtime_dir,
            "transport": transport,
            "label": label,
            "job": job,
            "ttl": ttl,
        }
        options = {name: value for name, value in given.items() if value is not None}
        options.update(nodes=nodes, stripe=stripe, patience=patience)
        try:
            return super().__new__(cls, size, options)  # type: ignore[return-value]
        except NotRunning:
            if manager is not None or runtime_dir is not None or not _platform.may_start():
                raise
            _platform.start()
        return super().__new__(cls, size, options)  # type: ignore[return-value]

    @property
    def transport(self) -> str:
        """How the first node's memory is reached: ``"shm"``, or a provider of libfabric."""
        return self._transport()

    def __len__(self) -> int:
        return self._size()

    def read(self, offset: int, size: int) -> bytes:
        """Returns `size` bytes from `offset` on."""
        bytes_ = bytearray(size)
        self._read_into(offset, memoryview(bytes_))
        return bytes(bytes_)

    def read_into(self, offset: int, target: Buffer) -> None:
        """Fills a writable, contiguous object (a `bytearray`, an array) with the bytes from `offset` on."""
        self._read_into(offset, _bytes_of(target))

    def write(self, offset: int, source: Buffer) -> None:
        """Copies the bytes of a contiguous object to the bytes from `offset` on. The memory has them when this returns."""
        self._write(offset, _bytes_of(source))

    def begin_read_into(self, offset: int, target: Buffer) -> Copy:
        """Begins what `read_into` does, on another thread. `target` must not be used until the copy has ended."""
        return Copy(self._begin_read(offset, _bytes_of(target)))

    def begin_write(self, offset: int, source: Buffer) -> Copy:
        """Begins what `write` does, on another thread. `source` must not be changed until the copy has ended."""
        return Copy(self._begin_write(offset, _bytes_of(source)))

    def __getitem__(self, place: slice) -> bytes:
        first, last = self._span(place)
        return self.read(first, last - first)

    def __setitem__(self, place: slice, source: Buffer) -> None:
        first, last = self._span(place)
        view = _bytes_of(source)
        if view.nbytes != last - first:
            raise ValueError(f"the slice has {last - first} bytes, and the object {view.nbytes}: remote memory keeps its size")
        self._write(first, view)

    def _span(self, place: slice) -> tuple[int, int]:
        if not isinstance(place, slice):
            raise TypeError("remote memory is read and written by slices, memory[first:last]")
        first, last, step = place.indices(len(self))
        if step != 1:
            raise ValueError(f"remote memory has slices of step 1, not {step}")
        return first, max(first, last)

    def close(self) -> None:
        """Gives the memory back. Later calls do nothing; other calls raise `MemoryLost`."""
        self._close()

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("remote memory belongs to this process: send the bytes, or results that are computed from them")


class RemoteArray:
    """An array in remote memory: slices of its first axis are read and written as numpy arrays.

    Parameters
    ----------
    shape, dtype
        As for `numpy.zeros`. Objects are refused.
    options
        Options of the `RemoteMemory` that it is in.

    Examples
    --------
    >>> with hotlease.RemoteArray((1000, 3)) as points:
    ...     points[10:12] = [[1, 2, 3], [4, 5, 6]]
    ...     points[11].sum()
    np.float64(15.0)
    """

    def __init__(self, shape: Union[int, Sequence[int]], dtype: Any = float, **options: Any) -> None:
        import numpy

        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.dtype = numpy.dtype(dtype)
        if self.dtype.hasobject:
            raise TypeError(f"remote memory holds plain values, and {self.dtype} refers to objects")
        if not self.shape or any(length < 0 for length in self.shape):
            raise ValueError(f"a remote array has at least one axis, and no negative length, not {self.shape}")
        #: Number of elements, and of bytes.
        self.size = 1
        for length in self.shape:
            self.size *= length
        self.nbytes = self.size * self.dtype.itemsize
        # Remote memory has at least one byte.
        self.memory = RemoteMemory(max(1, self.nbytes), **options)
        self._prefetched: dict[tuple[int, int], tuple[Copy, numpy.ndarray[Any, Any]]] = {}

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, place: Union[int, slice]) -> Any:
        """A copy of the rows; of one row for an index."""
        first, last = self._rows(place)
        ahead = self._prefetched.pop((first, last), None)
        if ahead is None:
            rows = self._empty(last - first)
            self.memory.read_into(first * self._row_bytes(), rows)
        else:
            copy, rows = ahead
            copy.wait()
        return rows if isinstance(place, slice) else rows[0]

    def __setitem__(self, place: Union[int, slice], values: Any) -> None:
        import numpy

        first, last = self._rows(place)
        rows = self._empty(last - first)
        target = rows if isinstance(place, slice) else rows[0:1].reshape(self.shape[1:])
        numpy.copyto(target, values, casting="same_kind")
        self._drop_prefetched(first, last)
        self.memory.write(first * self._row_bytes(), rows)

    def prefetch(self, place: slice) -> None:
        """Begins to read rows that the same slice returns later. Writes to them in the meantime drop what was read."""
        first, last = self._rows(place)
        if first == last or (first, last) in self._prefetched:
            return
        rows = self._empty(last - first)
        self._prefetched[(first, last)] = (self.memory.begin_read_into(first * self._row_bytes(), rows), rows)

    def close(self) -> None:
        """Gives the memory back."""
        self._drop_prefetched(0, len(self))
        self.memory.close()

    def __enter__(self) -> RemoteArray:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<hotlease.RemoteArray of {self.shape}, {self.dtype}>"

    def _empty(self, rows: int) -> numpy.ndarray[Any, Any]:
        import numpy

        return numpy.empty((rows, *self.shape[1:]), self.dtype)

    def _row_bytes(self) -> int:
        return self.nbytes // self.shape[0] if self.shape[0] else 0

    def _rows(self, place: Union[int, slice]) -> tuple[int, int]:
        if isinstance(place, slice):
            first, last, step = place.indices(len(self))
            if step != 1:
                raise ValueError(f"a remote array has slices of step 1, not {step}: read the rows and take some of them")
            return first, max(first, last)
        try:
            index = place.__index__()
        except AttributeError:
            raise TypeError("a remote array is indexed by one number or one slice, of its first axis") from None
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of a remote array of {len(self)} rows")
        index %= len(self)
        return index, index + 1

    def _drop_prefetched(self, first: int, last: int) -> None:
        for known in list(self._prefetched):
            if known[0] < last and first < known[1]:
                self._prefetched.pop(known)[0].wait()
