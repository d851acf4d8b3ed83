"""Files that all ranks of a communicator open together (``MPI.File``), on files of the operating system. A rank sees only its
part of the file, which a datatype describes (``Set_view``). Ranks on several hosts need a shared file system."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn, Optional

from hotlease.MPI import _handles
from hotlease.MPI._comm import Intracomm
from hotlease.MPI._constants import BYTE, DISPLACEMENT_CURRENT, MODE_APPEND, MODE_CREATE, MODE_DELETE_ON_CLOSE, MODE_EXCL
from hotlease.MPI._constants import MODE_RDONLY, MODE_RDWR, MODE_SEQUENTIAL, MODE_WRONLY, SEEK_CUR, SEEK_END, SEEK_SET
from hotlease.MPI._errors import Exception as Failure
from hotlease.MPI._errors import Missing
from hotlease.MPI._groups import Group
from hotlease.MPI._native import BufferBytes, Datatype, Request, Status
from hotlease.MPI._shared_position import Offer, SharedPosition, offered

_ACCESS = {MODE_RDONLY: os.O_RDONLY, MODE_WRONLY: os.O_WRONLY, MODE_RDWR: os.O_RDWR}
_KINDS = {FileNotFoundError: "NoSuchFile", FileExistsError: "FileExists", PermissionError: "Access"}


class View(NamedTuple):
    """Part of a file that a rank sees: from byte ``start`` on, ``filetype`` after ``filetype``, in elements of ``etype``."""

    start: int
    etype: Datatype
    filetype: Datatype
    # Offset and length of each run of bytes in one filetype.
    runs: list[tuple[int, int]]

    def spans(self, at: int, length: int) -> Iterator[tuple[int, int]]:
        """Yields places in the file, and lengths, of ``length`` bytes of the view's data, from its byte ``at`` on."""
        size, extent = self.filetype.size, self.filetype.extent
        if self.runs == [(0, size)] and extent == size:
            yield self.start + at, length
            return
        tile, skipped = divmod(at, size)
        while length > 0:
            for offset, run in self.runs:
                if skipped >= run:
                    skipped -= run
                    continue
                taken = min(run - skipped, length)
                if taken == 0:
                    return
                yield self.start + tile * extent + offset + skipped, taken
                length -= taken
                skipped = 0
            tile += 1

    def end_of_data(self, file_bytes: int) -> int:
        """Returns the number of bytes of the view's data in a file of a given length."""
        size, extent = self.filetype.size, self.filetype.extent
        beyond = max(file_bytes - self.start, 0)
        if extent <= 0:
            return beyond
        tiles, rest = divmod(beyond, extent)
        return tiles * size + sum(min(max(rest - offset, 0), run) for offset, run in self.runs)


def _view(start: int, etype: Datatype, filetype: Datatype) -> View:
    if start < 0 or etype.size == 0 or filetype.size == 0 or filetype.size % etype.size:
        raise Failure(f"a view from {start} on, of {filetype!r} in elements of {etype!r}", "Arguments")
    return View(start, etype, filetype, filetype._runs(1, 0))


def _raise(name: str, what: str, error: OSError) -> NoReturn:
    kind = next((kind for type_, kind in _KINDS.items() if isinstance(error, type_)), "Io")
    if error.errno == errno.ESPIPE:
        raise Failure(f"cannot {what} {name}: a pipe has no positions, at which MPI.File reads and writes", "UnsupportedOperation") from error
    raise Failure(f"cannot {what} {name}: {error.strerror or error}", kind) from error


class File:
    """A file that all ranks of a communicator have opened; ``File.Open`` opens it.

    Offsets count elements of the view's ``etype``, which are bytes until ``Set_view`` sets another type. All ranks make the
    calls whose names end in ``_all`` or ``_ordered``, and ``Open``, ``Close``, ``Set_size``, ``Set_view``, ``Sync``.
    Non-blocking calls complete their operation before they return. With ``MODE_SEQUENTIAL``, only ``_shared`` and
    ``_ordered`` calls read and write, and no call seeks.
    """

    def __init__(self, file: Optional[File] = None) -> None:
        """Makes another reference to a file; without ``file``, makes ``FILE_NULL``."""
        self.__dict__ = file.__dict__ if file is not None else {"_descriptor": None}

    _comm: Intracomm
    # None: the object is FILE_NULL.
    _descriptor: Optional[int]
    _name: Any
    _amode: int
    _is_atomic: bool
    _info: _handles.Info
    _view: View
    _position: int
    _shared: SharedPosition

    # Opening and closing

    @classmethod
    def Open(cls, comm: Intracomm, filename: Any, amode: int = MODE_RDONLY, info: Any = None) -> File:
        """Opens a file at all ranks; if one rank cannot open it, all ranks raise an error."""
        access = amode & (MODE_RDONLY | MODE_WRONLY | MODE_RDWR)
        if access not in _ACCESS or access == MODE_RDONLY and amode & (MODE_CREATE | MODE_EXCL):
            raise Failure(f"an access mode of {amode}: one of MODE_RDONLY, MODE_WRONLY, MODE_RDWR; CREATE and EXCL to write", "Amode")
        if access == MODE_RDWR and amode & MODE_SEQUENTIAL:
            raise Failure("MODE_SEQUENTIAL with MODE_RDWR: a file is read or written in sequence, not both", "Amode")
        file, name = cls(), os.fspath(filename)
        file._name, file._amode, file._is_atomic = name, amode, False
        file._comm = comm.Idup()[0]
        file._info = _handles.Info(info or None)
        create = (os.O_CREAT if amode & MODE_CREATE else 0) | (os.O_EXCL if amode & MODE_EXCL else 0)
        # One rank makes the file, so that the file is new for one rank only; then the other ranks open it.
        failed = file._opened(_ACCESS[access] | create) if file._comm.rank == 0 else None
        is_first = file._comm.rank == 0
        offer: Optional[Offer] = None
        kept = None
        if is_first and failed is None:
            offer, kept = offered(file.Get_size() if amode & MODE_APPEND else 0)
        failed, offer = file._comm.bcast((failed, offer) if is_first else None)
        if failed is None and not is_first:
            failed = file._opened(_ACCESS[access])
        if offer is not None:
            file._shared = SharedPosition(name, offer)
        told: list[Any] = file._comm.allgather((failed, offer is not None and file._shared.is_reached))
        if kept is not None:
            os.close(kept)
        errors = [error for error, _ in told if error is not None]
        if errors:
            if offer is not None:
                file._shared.close()
            if file._descriptor is not None:
                os.close(file._descriptor)
                file._descriptor = None
            file._comm.Free()
            _raise(name, "open", errors[0])
        file._view = _view(0, BYTE, BYTE)
        if not all(is_reached for _, is_reached in told):
            file._shared.hide()
        file._position = file._shared.first
        return file

    def _opened(self, flags: int) -> Optional[OSError]:
        try:
            self._descriptor = os.open(self._name, flags | os.O_CLOEXEC, 0o666)
        except OSError as error:
            return error
        return None

    @property
    def _open(self) -> int:
        if self._descriptor is None:
            raise Failure("this is MPI.FILE_NULL: no file, or one that was closed", "BadFile")
        return self._descriptor

    def _check_places(self) -> None:
        """Raises an error for a file without positions, which calls can neither choose nor return."""
        self._open  # noqa: B018
        if self._amode & MODE_SEQUENTIAL:
            text = f"{self._name} is open with MODE_SEQUENTIAL, without positions: Read_shared, Write_shared, and _ordered calls"
            raise Failure(text, "UnsupportedOperation")

    def Close(self) -> None:
        """Closes the file at all ranks: this object becomes ``FILE_NULL``."""
        os.close(self._open)
        self._descriptor = None
        self._shared.close()
        self._comm.Barrier()
        try:
            if self._comm.rank == 0:
                self._shared.delete()
                if self._amode & MODE_DELETE_ON_CLOSE:
                    self.Delete(self._name)
        finally:
            # No rank's call returns before the file is deleted.
            self._comm.Barrier()
            self._comm.Free()

    @classmethod
    def Delete(cls, filename: Any, info: Any = None) -> None:
        """Deletes a file; one rank calls it."""
        try:
            os.unlink(filename)
        except OSError as error:
            _raise(os.fspath(filename), "delete", error)

    def __bool__(self) -> bool:
        return self._descriptor is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, File) and (self.__dict__ is other.__dict__ or not self and not other)

    __hash__ = None  # type: ignore[assignment]

    def __enter__(self) -> File:
        return self

    def __exit__(self, *ended: object) -> None:
        if self:
            self.Close()

    def __getattr__(self, name: str) -> NoReturn:
        if "_begin" in name or name.endswith("_end"):
            raise Missing(f"hotlease has no File.{name}: use File.{name.replace('_begin', '').replace('_end', '')}")
        raise AttributeError(f"'File' object has no attribute {name!r}")

    # The file

    def Get_size(self) -> int:
        """Returns the length of the file in bytes."""
        return os.fstat(self._open).st_size

    def Set_size(self, size: int) -> None:
        """Sets the length of the file in bytes, at all ranks."""
        self._check_places()
        self._by_first("set the length of", lambda: os.ftruncate(self._open, size))

    def Preallocate(self, size: int) -> None:
        """Reserves disk for the first bytes, at all ranks."""
        self._check_places()
        if size > 0:
            self._by_first("reserve disk for", lambda: os.posix_fallocate(self._open, 0, size))

    def _by_first(self, what: str, do: Any) -> None:
        failed = None
        if self._comm.rank == 0:
            try:
                do()
            except OSError as error:
                failed = error
        failed = self._comm.bcast(failed)
        if failed is not None:
            _raise(self._name, what, failed)

    def Sync(self) -> None:
        """Writes to the disk what any rank has written before."""
        os.fsync(self._open)
        self._comm.Barrier()

    def Get_amode(self) -> int:
        """Returns the access mode."""
        return self._amode

    def Get_group(self) -> Group:
        """Returns the group of the ranks that have opened the file."""
        return self._comm.Get_group()

    def Get_info(self) -> _handles.Info:
        """Returns the hints."""
        return self._info.Dup()

    def Set_info(self, info: _handles.Info) -> None:
        """Records hints."""
        self._info = _handles.Info(info)

    def Get_atomicity(self) -> bool:
        """Returns whether accesses are atomic."""
        return self._is_atomic

    def Set_atomicity(self, flag: bool) -> None:
        """Sets whether accesses are atomic: an access is done as a whole before or after any access of another rank."""
        self._is_atomic = bool(flag)
        self._comm.Barrier()

    def Get_errhandler(self) -> _handles.Errhandler:
        """Returns the handler that was set, by default ``ERRORS_RETURN``."""
        return getattr(self, "_errhandler", None) or _handles.ERRORS_RETURN

    def Set_errhandler(self, errhandler: _handles.Errhandler) -> None:
        """Records a handler. Errors are always raised."""
        self.__dict__["_errhandler"] = errhandler

    amode = property(Get_amode)
    atomicity = property(Get_atomicity, Set_atomicity)
    group = property(Get_group)
    info = property(Get_info, Set_info)
    size = property(Get_size)

    # The view

    def Set_view(
        self,
        disp: int = 0,
        etype: Datatype = BYTE,
        filetype: Optional[Datatype] = None,
        datarep: str = "native",
        info: Any = None,
    ) -> None:
        """Sets the part of the file that this rank sees, and moves all positions to its beginning. All ranks call it. With
        ``MODE_SEQUENTIAL``, and only then, ``disp`` is ``DISPLACEMENT_CURRENT``: the place where ranks read and write next."""
        if datarep not in ("native", "internal"):
            raise Failure(f"a data representation of {datarep!r}: native or internal", "Arguments")
        self._open  # noqa: B018
        if bool(self._amode & MODE_SEQUENTIAL) != (disp == DISPLACEMENT_CURRENT):
            raise Failure(f"a view from {disp} on: DISPLACEMENT_CURRENT with MODE_SEQUENTIAL, and only then", "Arguments")
        if disp == DISPLACEMENT_CURRENT:
            disp = self._place_of(self._moved_shared(lambda position: position))
        self._view = _view(disp, etype, filetype or etype)
        self._position = 0
        self._place_shared(0)

    def Get_view(self) -> tuple[int, Datatype, Datatype, str]:
        """Returns the beginning of the view, its ``etype`` and ``filetype``, and the data representation."""
        return self._view.start, self._view.etype, self._view.filetype, "native"

    def Get_type_extent(self, datatype: Datatype) -> int:
        """Returns the extent of a datatype in the file."""
        return datatype.extent

    def Get_byte_offset(self, offset: int) -> int:
        """Returns the byte of the file at an offset in the view."""
        self._check_places()
        return self._place_of(offset)

    def _place_of(self, offset: int) -> int:
        return next(self._view.spans(offset * self._view.etype.size, 1))[0]

    def Get_position(self) -> int:
        """Returns this rank's position in the view."""
        self._check_places()
        return self._position

    def Seek(self, offset: int, whence: int = SEEK_SET) -> None:
        """Sets this rank's position in the view."""
        self._check_places()
        self._position = self._target(offset, whence, self._position)

    def Get_position_shared(self) -> int:
        """Returns the position in the view that all ranks share; ``_shared`` and ``_ordered`` calls use it."""
        self._check_places()
        return self._moved_shared(lambda position: position)

    def Seek_shared(self, offset: int, whence: int = SEEK_SET) -> None:
        """Sets the position that all ranks share. All ranks call it."""
        self._check_places()
        self._comm.Barrier()
        self._place_shared(self._target(offset, whence, self.Get_position_shared()))

    def _place_shared(self, position: int) -> None:
        # Rank 0 moves the position after all ranks have used the old position, and before any rank uses the new one.
        self._comm.Barrier()
        if self._comm.rank == 0:
            self._moved_shared(lambda _: position)
        self._comm.Barrier()

    def _moved_shared(self, to: Callable[[int], int]) -> int:
        try:
            return self._shared.move(to)
        except OSError as error:
            _raise(self._name, "keep a position that ranks share beside", error)

    def _target(self, offset: int, whence: int, current: int) -> int:
        size = self._view.etype.size
        end = -(-self._view.end_of_data(self.Get_size()) // size) if whence == SEEK_END else 0
        target = offset + {SEEK_SET: 0, SEEK_CUR: current, SEEK_END: end}[whence]
        if target < 0:
            raise Failure(f"a position of {target} in {self._name}", "Arguments")
        return target

    # Data

    def _transfer(self, buf: Any, offset: int, is_read: bool, status: Optional[Status]) -> int:
        """Reads or writes from an offset of the view on; returns the number of bytes that were read or written."""
        if offset < 0:
            raise Failure(f"an offset of {offset} in {self._name}", "Arguments")
        descriptor = self._open
        memory = BufferBytes(buf, is_read)
        view = memoryview(memory)
        done = 0
        move = self._read_span if is_read else self._written_span
        if self._is_atomic:
            fcntl.lockf(descriptor, fcntl.LOCK_SH if is_read else fcntl.LOCK_EX)
        try:
            for place, length in self._view.spans(offset * self._view.etype.size, len(view)):
                moved = move(descriptor, view[done : done + length], place)
                done += moved
                if moved < length:
                    break
        except OSError as error:
            _raise(self._name, "read" if is_read else "write", error)
        finally:
            if self._is_atomic:
                fcntl.lockf(descriptor, fcntl.LOCK_UN)
        memory.unpack()
        if status is not None:
            status._copy_of(Status())
            status.Set_elements(BYTE, done)
        return done

    @staticmethod
    def _read_span(descriptor: int, into: memoryview, place: int) -> int:
        done = 0
        while done < len(into):
            got = os.preadv(descriptor, [into[done:]], place + done)
            if got == 0:
                break
            done += got
        return done

    @staticmethod
    def _written_span(descriptor: int, data: memoryview, place: int) -> int:
        done = 0
        while done < len(data):
            done += os.pwrite(descriptor, data[done:], place + done)
        return done

    def _at(self, offset: int, buf: Any, is_read: bool, status: Optional[Status]) -> int:
        self._check_places()
        return self._transfer(buf, offset, is_read, status)

    def _at_position(self, buf: Any, is_read: bool, status: Optional[Status]) -> int:
        self._check_places()
        done = self._transfer(buf, self._position, is_read, status)
        self._position += -(-done // self._view.etype.size)
        return done

    def _ordered(self, buf: Any, is_read: bool, status: Optional[Status]) -> int:
        # Each rank's part is as long as the rank's buffer, and follows the parts of lower ranks.
        own = -(-len(memoryview(BufferBytes(buf, is_read))) // self._view.etype.size)
        parts = self._comm.allgather(own)
        begin = self._moved_shared(lambda position: position + sum(parts)) if self._comm.rank == 0 else None
        offset = int(self._comm.bcast(begin)) + sum(parts[: self._comm.rank])
        return self._transfer(buf, offset, is_read, status)

    def _at_shared(self, buf: Any, is_read: bool, status: Optional[Status]) -> int:
        own = -(-len(memoryview(BufferBytes(buf, is_read))) // self._view.etype.size)
        self._open  # noqa: B018
        return self._transfer(buf, self._moved_shared(lambda position: position + own), is_read, status)

    def Read_at(self, offset: int, buf: Any, status: Optional[Status] = None) -> None:
        """Reads from an offset on, until the buffer is full or the file ends."""
        self._at(offset, buf, True, status)

    def Write_at(self, offset: int, buf: Any, status: Optional[Status] = None) -> None:
        """Writes from an offset on."""
        self._at(offset, buf, False, status)

    def Read(self, buf: Any, status: Optional[Status] = None) -> None:
        """Reads from this rank's position on, and moves the position."""
        self._at_position(buf, True, status)

    def Write(self, buf: Any, status: Optional[Status] = None) -> None:
        """Writes from this rank's position on, and moves the position."""
        self._at_position(buf, False, status)

    def Read_shared(self, buf: Any, status: Optional[Status] = None) -> None:
        """Reads from the position that all ranks share, and moves this position: each part of the file is read by one rank."""
        self._at_shared(buf, True, status)

    def Write_shared(self, buf: Any, status: Optional[Status] = None) -> None:
        """Writes at the position that all ranks share, and moves this position: ranks write one after another, in any order."""
        self._at_shared(buf, False, status)

    def Iread_shared(self, buf: Any) -> Request:
        """Reads as ``Read_shared`` does; the returned request has ended."""
        return Request._ended(self._at_shared(buf, True, None))

    def Iwrite_shared(self, buf: Any) -> Request:
        """Writes as ``Write_shared`` does; the returned request has ended."""
        return Request._ended(self._at_shared(buf, False, None))

    def Read_ordered(self, buf: Any, status: Optional[Status] = None) -> None:
        """Reads from the shared position on: a part for each rank, in the order of ranks. All ranks call it."""
        self._ordered(buf, True, status)

    def Write_ordered(self, buf: Any, status: Optional[Status] = None) -> None:
        """Writes from the shared position on: the part of each rank, in the order of ranks. All ranks call it."""
        self._ordered(buf, False, status)

    def Iread_at(self, offset: int, buf: Any) -> Request:
        """Reads from an offset on; the returned request has ended."""
        return Request._ended(self._at(offset, buf, True, None))

    def Iwrite_at(self, offset: int, buf: Any) -> Request:
        """Writes from an offset on; the returned request has ended."""
        return Request._ended(self._at(offset, buf, False, None))

    def Iread(self, buf: Any) -> Request:
        """Reads from this rank's position on, and moves the position; the returned request has ended."""
        return Request._ended(self._at_position(buf, True, None))

    def Iwrite(self, buf: Any) -> Request:
        """Writes from this rank's position on, and moves the position; the returned request has ended."""
        return Request._ended(self._at_position(buf, False, None))

    Read_at_all, Write_at_all, Read_all, Write_all = Read_at, Write_at, Read, Write
    Iread_at_all, Iwrite_at_all, Iread_all, Iwrite_all = Iread_at, Iwrite_at, Iread, Iwrite


FILE_NULL = File()
