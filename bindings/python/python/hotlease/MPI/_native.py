"""Classes of the extension module for message passing, made when this module is imported."""

from hotlease import _core

_classes = _core._mpi()
BufferBytes = _classes.BufferBytes
Bytes = _classes.Bytes
Collectives = _classes.Collectives
Datatype = _classes.Datatype
Handle = _classes.Handle
Op = _classes.Op
Request = _classes.Request
Status = _classes.Status
end_all = _classes.end_all
memory = _classes.memory
