//! Methods of a communicator that send and receive: the base of `MPI.Comm`.

use super::buffer_spec::{BufferPart, Loan};
use super::failure;
use super::member::{Handle, Member, SharedCommunicator, interruptible};
use super::operation::{RunningOperation, wait};
use super::pinned_buffer::BufferAccess;
use super::request::{Bytes, Request};
use super::status::{ANY_SOURCE, ANY_TAG, PROC_NULL, Status, fill_null_status, tell};
use hotlease_comm::{Communicator, Error, LentBytes, MessageStatus as Known, Pattern};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use std::sync::Arc;

const SENT: &str = "the send buffer";
const RECEIVED: &str = "the receive buffer";

/// Base with the point-to-point methods; see the module.
#[pyclass(frozen, subclass, module = "hotlease._core")]
pub struct Messages {
    pub member: Arc<Member>,
}

impl Messages {
    /// Makes the object from a handle, or from another communicator; the object is then equal to that communicator.
    pub fn made_of(of: &Bound<'_, PyAny>) -> PyResult<Self> {
        let member = if let Ok(handle) = of.cast::<Handle>() {
            Arc::clone(&handle.get().0)
        } else if let Ok(other) = of.cast::<Self>() {
            Arc::clone(&other.get().member)
        } else {
            return Err(PyTypeError::new_err(
                "a communicator is made by MPI.join, Split, Dup, ...",
            ));
        };
        Ok(Self { member })
    }
}

/// Beginning of a send: [`Communicator::isend_lent`] or [`Communicator::issend_lent`].
type Begin = fn(&Communicator, &LentBytes, u32, u32) -> Result<hotlease_comm::Request, Error>;

/// Rank of the receiver; `None` for `MPI.PROC_NULL`.
fn receiver(py: Python<'_>, shared: &SharedCommunicator, dest: i64) -> PyResult<Option<u32>> {
    if dest == PROC_NULL {
        return Ok(None);
    }
    u32::try_from(dest).map(Some).map_err(|_| {
        let size = shared.size();
        failure::error(
            py,
            "NoSuchRank",
            format!("there is no rank {dest} in a communicator of {size}; use MPI.PROC_NULL for no rank"),
        )
    })
}

fn tag(py: Python<'_>, tag: i64) -> PyResult<u32> {
    let number = u32::try_from(tag).ok().filter(|tag| *tag <= i32::MAX as u32);
    number.ok_or_else(|| {
        let text = format!(
            "a tag of {tag}: tags are 0 to {}; MPI.ANY_TAG is for receives",
            i32::MAX
        );
        failure::error(py, "Tag", text)
    })
}

/// Pattern of a receive; `None` if the source is `MPI.PROC_NULL`.
fn pattern(py: Python<'_>, shared: &SharedCommunicator, source: i64, wanted: i64) -> PyResult<Option<Pattern>> {
    let tag = match wanted {
        ANY_TAG => None,
        other => Some(tag(py, other)?),
    };
    if source == ANY_SOURCE {
        return Ok(Some(Pattern { source: None, tag }));
    }
    let source = receiver(py, shared, source)?;
    Ok(source.map(|source| Pattern {
        source: Some(source),
        tag,
    }))
}

impl Messages {
    fn shared(&self, py: Python<'_>) -> PyResult<Arc<SharedCommunicator>> {
        self.member.shared(py)
    }

    /// Makes another communicator from this communicator; Ctrl-C ends the wait.
    fn make(
        &self,
        py: Python<'_>,
        make: impl FnOnce(&SharedCommunicator) -> Result<Communicator, Error> + Send + 'static,
    ) -> PyResult<Handle> {
        let shared = self.shared(py)?;
        let made = interruptible(py, move || make(&shared))?;
        made.map(Handle::of).map_err(|error| failure::of(py, &error))
    }

    fn send(&self, py: Python<'_>, shared: &SharedCommunicator, part: BufferPart, dest: u32, tag: u32) -> PyResult<()> {
        let bytes = part.slice();
        let sent = py.detach(|| shared.try_send(bytes, dest, tag));
        if sent.map_err(|error| failure::of(py, &error))? {
            return Ok(());
        }
        let bytes = part.bytes();
        let begin = |loan: &Loan<_>| shared.isend_lent(loan.memory(), dest, tag);
        RunningOperation::run(py, &self.member, part.lend(bytes), None, begin).map(drop)
    }

    fn begin_send(
        &self,
        py: Python<'_>,
        shared: &SharedCommunicator,
        part: BufferPart,
        (dest, tag): (u32, u32),
        send: Begin,
    ) -> PyResult<RunningOperation> {
        let bytes = part.bytes();
        let begin = |loan: &Loan<_>| send(shared, loan.memory(), dest, tag);
        RunningOperation::begin(py, &self.member, part.lend(bytes), None, begin)
    }

    fn start_send(
        &self,
        py: Python<'_>,
        buf: &Bound<'_, PyAny>,
        (dest, tag): (i64, i64),
        send: Begin,
    ) -> PyResult<Request> {
        let shared = self.shared(py)?;
        let tag = self::tag(py, tag)?;
        let Some(dest) = receiver(py, &shared, dest)? else {
            return Ok(Request::of_nothing(&self.member, PROC_NULL));
        };
        let part = BufferPart::of(buf, BufferAccess::Read, SENT)?;
        let work = self.begin_send(py, &shared, part, (dest, tag), send)?;
        Ok(Request::of_work(&self.member, work))
    }

    fn begin_receive(
        &self,
        py: Python<'_>,
        shared: &SharedCommunicator,
        part: BufferPart,
        pattern: Pattern,
    ) -> PyResult<RunningOperation> {
        let bytes = part.bytes();
        let begin = |loan: &Loan<_>| shared.irecv_lent(loan.memory(), pattern);
        RunningOperation::begin(py, &self.member, part.lend_mut(bytes), None, begin)
    }

    /// Sends and receives; each part is skipped if its partner is `MPI.PROC_NULL`.
    fn exchange(
        &self,
        py: Python<'_>,
        (part, dest, tag): (BufferPart, Option<u32>, u32),
        (into, pattern): (BufferPart, Option<Pattern>),
    ) -> PyResult<Option<Known>> {
        let shared = self.shared(py)?;
        let receive = pattern
            .map(|pattern| self.begin_receive(py, &shared, into, pattern))
            .transpose()?;
        if let Some(dest) = dest
            && let Err(error) = self.send(py, &shared, part, dest, tag)
        {
            if let Some(work) = receive {
                work.abandon(py, &self.member);
            }
            return Err(error);
        }
        receive.map(|work| work.wait(py, &self.member)).transpose()
    }

    /// Receives a message of any length into new memory.
    fn receive_any_length(
        &self,
        py: Python<'_>,
        source: i64,
        tag: i64,
        status: Option<&Bound<'_, Status>>,
    ) -> PyResult<Option<Bytes>> {
        let shared = self.shared(py)?;
        let Some(pattern) = pattern(py, &shared, source, tag)? else {
            fill_null_status(status);
            return Ok(None);
        };
        let mut receiving = py
            .detach(|| shared.irecv_any_length(pattern))
            .map_err(|error| failure::of(py, &error))?;
        let received = wait(py, |at_most| receiving.wait_for(at_most))?;
        tell(status, &received.status);
        Ok(Some(Bytes::new(received.bytes)))
    }
}

#[pymethods]
impl Messages {
    #[new]
    fn new(of: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::made_of(of)
    }

    fn Get_rank(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.shared(py)?.rank())
    }

    fn Get_size(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.shared(py)?.size())
    }

    #[getter]
    fn rank(&self, py: Python<'_>) -> PyResult<u32> {
        self.Get_rank(py)
    }

    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<u32> {
        self.Get_size(py)
    }

    /// Handle from which the communicator was made.
    #[getter]
    fn _handle(&self) -> Handle {
        Handle(Arc::clone(&self.member))
    }

    /// Name by which the communicator was joined.
    fn _joined_by(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.shared(py)?.name().to_owned())
    }

    /// Link of the communicator, without credentials: `direct`, `redis://cache:6379`. For `auto`, the link that was
    /// chosen.
    #[getter]
    fn link(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.shared(py)?.link().to_string())
    }

    /// Sends the buffer; returns when the buffer may be used again.
    #[pyo3(signature = (buf, dest, tag=0))]
    fn Send(&self, py: Python<'_>, buf: &Bound<'_, PyAny>, dest: i64, tag: i64) -> PyResult<()> {
        let shared = self.shared(py)?;
        let tag = self::tag(py, tag)?;
        match receiver(py, &shared, dest)? {
            Some(dest) => self.send(py, &shared, BufferPart::of(buf, BufferAccess::Read, SENT)?, dest, tag),
            None => Ok(()),
        }
    }

    /// Receives a message that is at most as long as the buffer.
    #[pyo3(signature = (buf, source=ANY_SOURCE, tag=ANY_TAG, status=None))]
    fn Recv(
        &self,
        py: Python<'_>,
        buf: &Bound<'_, PyAny>,
        source: i64,
        tag: i64,
        status: Option<&Bound<'_, Status>>,
    ) -> PyResult<()> {
        let shared = self.shared(py)?;
        let Some(pattern) = pattern(py, &shared, source, tag)? else {
            fill_null_status(status);
            return Ok(());
        };
        let part = BufferPart::of(buf, BufferAccess::Write, RECEIVED)?;
        let bytes = part.bytes();
        let begin = |loan: &Loan<_>| shared.irecv_lent(loan.memory(), pattern);
        let known = RunningOperation::run(py, &self.member, part.lend_mut(bytes), None, begin)?;
        tell(status, &known);
        Ok(())
    }

    /// Sends and receives at the same time. So two members can exchange messages, and all members can pass messages
    /// around a ring.
    #[pyo3(signature = (sendbuf, dest, sendtag=0, recvbuf=None, source=ANY_SOURCE, recvtag=ANY_TAG, status=None))]
    #[allow(clippy::too_many_arguments, reason = "mpi4py's")]
    fn Sendrecv(
        &self,
        py: Python<'_>,
        sendbuf: &Bound<'_, PyAny>,
        dest: i64,
        sendtag: i64,
        recvbuf: Option<&Bound<'_, PyAny>>,
        source: i64,
        recvtag: i64,
        status: Option<&Bound<'_, Status>>,
    ) -> PyResult<()> {
        let shared = self.shared(py)?;
        let sent = BufferPart::of(sendbuf, BufferAccess::Read, SENT)?;
        let into = recvbuf.map_or(Ok(BufferPart::none()), |buf| {
            BufferPart::of(buf, BufferAccess::Write, RECEIVED)
        })?;
        let send = (sent, receiver(py, &shared, dest)?, self::tag(py, sendtag)?);
        let pattern = pattern(py, &shared, source, recvtag)?;
        match self.exchange(py, send, (into, pattern))? {
            Some(known) => tell(status, &known),
            None => fill_null_status(status),
        }
        Ok(())
    }

    /// Sends and receives at the same time, with the same buffer.
    #[pyo3(signature = (buf, dest, sendtag=0, source=ANY_SOURCE, recvtag=ANY_TAG, status=None))]
    #[allow(clippy::too_many_arguments, reason = "mpi4py's")]
    fn Sendrecv_replace(
        &self,
        py: Python<'_>,
        buf: &Bound<'_, PyAny>,
        dest: i64,
        sendtag: i64,
        source: i64,
        recvtag: i64,
        status: Option<&Bound<'_, Status>>,
    ) -> PyResult<()> {
        let into = BufferPart::of(buf, BufferAccess::Write, RECEIVED)?;
        let copy = pyo3::types::PyBytes::new(py, into.slice());
        let copy = copy.as_any();
        self.Sendrecv(py, copy, dest, sendtag, Some(buf), source, recvtag, status)
    }

    /// Starts to send. The buffer is kept until the send has ended, and must not be changed before.
    #[pyo3(signature = (buf, dest, tag=0))]
    fn Isend(&self, py: Python<'_>, buf: &Bound<'_, PyAny>, dest: i64, tag: i64) -> PyResult<Request> {
        self.start_send(py, buf, (dest, tag), Communicator::isend_lent)
    }

    /// Starts to send; the send ends when a receive has asked for the message.
    #[pyo3(signature = (buf, dest, tag=0))]
    fn Issend(&self, py: Python<'_>, buf: &Bound<'_, PyAny>, dest: i64, tag: i64) -> PyResult<Request> {
        self.start_send(py, buf, (dest, tag), Communicator::issend_lent)
    }

    /// Starts to receive. The buffer is kept until the receive has ended.
    #[pyo3(signature = (buf, source=ANY_SOURCE, tag=ANY_TAG))]
    fn Irecv(&self, py: Python<'_>, buf: &Bound<'_, PyAny>, source: i64, tag: i64) -> PyResult<Request> {
        let shared = self.shared(py)?;
        let Some(pattern) = pattern(py, &shared, source, tag)? else {
            return Ok(Request::of_nothing(&self.member, PROC_NULL));
        };
        let part = BufferPart::of(buf, BufferAccess::Write, RECEIVED)?;
        let work = self.begin_receive(py, &shared, part, pattern)?;
        Ok(Request::of_work(&self.member, work))
    }

    /// Starts to send and to receive.
    #[pyo3(signature = (sendbuf, dest, sendtag=0, recvbuf=None, source=ANY_SOURCE, recvtag=ANY_TAG))]
    #[allow(clippy::too_many_arguments, reason = "mpi4py's")]
    fn Isendrecv(
        &self,
        py: Python<'_>,
        sendbuf: &Bound<'_, PyAny>,
        dest: i64,
        sendtag: i64,
        recvbuf: Option<&Bound<'_, PyAny>>,
        source: i64,
        recvtag: i64,
    ) -> PyResult<Request> {
        let shared = self.shared(py)?;
        let sent = BufferPart::of(sendbuf, BufferAccess::Read, SENT)?;
        let into = recvbuf.map_or(Ok(BufferPart::none()), |buf| {
            BufferPart::of(buf, BufferAccess::Write, RECEIVED)
        })?;
        let dest = receiver(py, &shared, dest)?;
        let tag = self::tag(py, sendtag)?;
        let pattern = pattern(py, &shared, source, recvtag)?;
        let receive = pattern
            .map(|pattern| self.begin_receive(py, &shared, into, pattern))
            .transpose()?;
        let send = dest
            .map(|dest| self.begin_send(py, &shared, sent, (dest, tag), Communicator::isend_lent))
            .transpose()?;
        Ok(match (send, receive) {
            (Some(send), Some(receive)) => Request::of_both(&self.member, send, receive),
            (Some(work), None) | (None, Some(work)) => Request::of_work(&self.member, work),
            (None, None) => Request::of_nothing(&self.member, PROC_NULL),
        })
    }

    /// Sends a copy, so that the caller need not wait.
    #[pyo3(signature = (buf, dest, tag=0))]
    fn Ibsend(&self, py: Python<'_>, buf: &Bound<'_, PyAny>, dest: i64, tag: i64) -> PyResult<Request> {
        let copy = pyo3::types::PyBytes::new(py, BufferPart::of(buf, BufferAccess::Read, SENT)?.slice());
        self.Isend(py, copy.as_any(), dest, tag)
    }

    /// Waits for a message without receiving it.
    #[pyo3(signature = (source=ANY_SOURCE, tag=ANY_TAG, status=None))]
    fn Probe(&self, py: Python<'_>, source: i64, tag: i64, status: Option<&Bound<'_, Status>>) -> PyResult<bool> {
        let shared = self.shared(py)?;
        let Some(pattern) = pattern(py, &shared, source, tag)? else {
            fill_null_status(status);
            return Ok(true);
        };
        let known = wait(py, |at_most| shared.probe_for(pattern, at_most).transpose())?;
        tell(status, &known);
        Ok(true)
    }

    /// Whether there is a message that a receive would match.
    #[pyo3(signature = (source=ANY_SOURCE, tag=ANY_TAG, status=None))]
    fn Iprobe(&self, py: Python<'_>, source: i64, tag: i64, status: Option<&Bound<'_, Status>>) -> PyResult<bool> {
        let shared = self.shared(py)?;
        let Some(pattern) = pattern(py, &shared, source, tag)? else {
            fill_null_status(status);
            return Ok(true);
        };
        let known = py
            .detach(|| shared.iprobe(pattern))
            .map_err(|error| failure::of(py, &error))?;
        if let Some(known) = &known {
            tell(status, known);
        }
        Ok(known.is_some())
    }

    /// Receives a message of any length; `None` if the source is `MPI.PROC_NULL`.
    fn _recv(
        &self,
        py: Python<'_>,
        source: i64,
        tag: i64,
        status: Option<&Bound<'_, Status>>,
    ) -> PyResult<Option<Bytes>> {
        self.receive_any_length(py, source, tag, status)
    }

    /// Receives a message of any length, if a message has arrived; otherwise returns `None`.
    fn _recv_now(
        &self,
        py: Python<'_>,
        source: i64,
        tag: i64,
        status: Option<&Bound<'_, Status>>,
    ) -> PyResult<Option<Bytes>> {
        let shared = self.shared(py)?;
        let Some(pattern) = pattern(py, &shared, source, tag)? else {
            return Ok(None);
        };
        let found = py
            .detach(|| shared.try_recv_any_length(pattern))
            .map_err(|error| failure::of(py, &error))?;
        let Some(mut receiving) = found else {
            return Ok(None);
        };
        let received = wait(py, |at_most| receiving.wait_for(at_most))?;
        tell(status, &received.status);
        Ok(Some(Bytes::new(received.bytes)))
    }

    /// Starts to receive an object, which `loads` makes from the message's bytes.
    fn _irecv(&self, py: Python<'_>, source: i64, tag: i64, loads: Py<PyAny>) -> PyResult<Request> {
        let shared = self.shared(py)?;
        let Some(pattern) = pattern(py, &shared, source, tag)? else {
            return Ok(Request::of_nothing(&self.member, PROC_NULL));
        };
        let receiving = py
            .detach(|| shared.irecv_any_length(pattern))
            .map_err(|error| failure::of(py, &error))?;
        Ok(Request::of_object(&self.member, receiving, loads))
    }

    /// Splits the communicator by colour. With a `color` of `None`, this member joins no part.
    fn _split(&self, py: Python<'_>, color: Option<u32>, key: i64) -> PyResult<Option<Handle>> {
        let shared = self.shared(py)?;
        let made = interruptible(py, move || shared.split(color, key))?;
        made.map(|made| made.map(Handle::of))
            .map_err(|error| failure::of(py, &error))
    }

    fn _dup(&self, py: Python<'_>) -> PyResult<Handle> {
        self.make(py, |shared| shared.dup())
    }

    fn _shrink(&self, py: Python<'_>) -> PyResult<Handle> {
        self.make(py, |shared| shared.shrink())
    }

    fn _grow(&self, py: Python<'_>, joining: u32) -> PyResult<Handle> {
        self.make(py, move |shared| shared.grow(joining))
    }

    /// Makes a communicator of these ranks; only these ranks call this method.
    fn _create(&self, py: Python<'_>, ranks: Vec<u32>, tag: u32) -> PyResult<Handle> {
        self.make(py, move |shared| shared.create_group(&ranks, tag))
    }

    /// Number of the group that met at the rendezvous, and each member's rank in that group. The two together identify
    /// a process.
    fn _places(&self, py: Python<'_>) -> PyResult<([u8; 16], Vec<u32>)> {
        let shared = self.shared(py)?;
        let (group, ranks) = shared.places();
        Ok((group, ranks.to_vec()))
    }
}
