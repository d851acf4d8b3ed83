//! Preparation of collectives from the arguments of a call. Counts and types that do not match are rejected first.

use super::buffer_blocks::BufferBlocks;
use super::buffer_spec::BufferPart;
use super::failure;
use super::member::{Member, SharedCommunicator, interruptible};
use super::operator::{Op, RaisedError};
use super::pinned_buffer::BufferAccess::{self, Read, Write};
use super::prepared::{Prepared, Start};
use hotlease_comm::{Blocks, Collective, Datatype as Kind, Operator};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::sync::{Arc, OnceLock};

const SENT: &str = "the send buffer";
const RECEIVED: &str = "the receive buffer";

type Spec<'a, 'py> = &'a Bound<'py, PyAny>;

/// `MPI.IN_PLACE`.
static IN_PLACE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Whether the caller's data is in the buffer for the result: the argument is `MPI.IN_PLACE`, or, as in mpi4py, `None`.
fn check_in_place(spec: Spec<'_, '_>) -> PyResult<bool> {
    let py = spec.py();
    if spec.is_none() {
        return Ok(true);
    }
    let it = IN_PLACE.get_or_try_init(py, || -> PyResult<_> {
        Ok(py.import("hotlease.MPI._constants")?.getattr("IN_PLACE")?.unbind())
    })?;
    Ok(spec.is(it))
}

/// A communicator, for the duration of a call.
pub struct CommunicatorGuard {
    pub member: Arc<Member>,
    pub shared: Arc<SharedCommunicator>,
    /// File and line of the call, in checked mode.
    pub site: Option<String>,
    rank: usize,
    size: usize,
}

/// File and line of the calling program, if collectives are checked: errors name the line.
fn site(py: Python<'_>) -> PyResult<Option<String>> {
    static IS_CHECKED: OnceLock<bool> = OnceLock::new();
    let asked = || std::env::var_os("HOTLEASE_COMM_CHECKED").is_some_and(|value| value == "1");
    if !IS_CHECKED.get_or_init(asked) {
        return Ok(None);
    }
    let mut frame = py.import("sys")?.call_method1("_getframe", (0,))?;
    loop {
        let module: Option<String> = frame
            .getattr("f_globals")?
            .call_method1("get", ("__name__",))?
            .extract()?;
        let outer = frame.getattr("f_back")?;
        if outer.is_none() || !module.is_some_and(|name| name.starts_with("hotlease.MPI")) {
            let file: String = frame.getattr("f_code")?.getattr("co_filename")?.extract()?;
            let line: u32 = frame.getattr("f_lineno")?.extract()?;
            return Ok(Some(format!("{file}:{line}")));
        }
        frame = outer;
    }
}

/// Gives the send and the receive buffer the same type: bytes if their types differ.
fn unify_types(given: &mut BufferPart, got: &mut BufferPart) {
    if given.kind != got.kind {
        given.as_bytes();
        got.as_bytes();
    }
}

/// Checks that both buffers have equally many bytes.
fn check_bytes(given: &BufferPart, got: &BufferPart) -> PyResult<()> {
    if given.bytes() == got.bytes() {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "{SENT} gives {} elements of {}, and {RECEIVED} takes {} of {}; both must have the same number of bytes",
        given.count, given.kind, got.count, got.kind
    )))
}

impl CommunicatorGuard {
    pub fn new(py: Python<'_>, member: &Arc<Member>) -> PyResult<Self> {
        let shared = member.shared(py)?;
        Ok(Self {
            member: Arc::clone(member),
            rank: shared.rank() as usize,
            size: shared.size() as usize,
            site: site(py)?,
            shared,
        })
    }

    fn root(&self, py: Python<'_>, root: i64) -> PyResult<(u32, bool)> {
        let known = u32::try_from(root).ok().filter(|root| (*root as usize) < self.size);
        let known = known.ok_or_else(|| {
            let text = format!("the root is rank {root}, but the communicator has {} ranks", self.size);
            failure::error(py, "Root", text)
        })?;
        Ok((known, known as usize == self.rank))
    }

    /// Hands a collective over to `start`, with its buffers and the store for exceptions of its operator.
    fn start<R>(
        &self,
        py: Python<'_>,
        (collective, kind, is_in_place): (Collective<'_>, Kind, bool),
        buffers: (BufferPart, BufferPart),
        raised: Option<RaisedError>,
        start: Start<R>,
    ) -> PyResult<R> {
        let mut collective = self.shared.collective(collective, kind).in_place(is_in_place);
        if let Some(site) = &self.site {
            collective = collective.at(site);
        }
        start(py, Prepared::of(py, self, collective, buffers, raised)?)
    }

    pub fn barrier<R>(&self, py: Python<'_>, start: Start<R>) -> PyResult<R> {
        let nothing = (BufferPart::none(), BufferPart::none());
        self.start(py, (Collective::Barrier, Kind::Bytes, false), nothing, None, start)
    }

    pub fn broadcast<R>(&self, buf: Spec<'_, '_>, root: i64, start: Start<R>) -> PyResult<R> {
        let (root, is_root) = self.root(buf.py(), root)?;
        let part = BufferPart::of(buf, if is_root { Read } else { Write }, "the buffer")?;
        let (count, kind) = (part.count, part.kind);
        let buffers = match is_root {
            true => (part, BufferPart::none()),
            false => (BufferPart::none(), part),
        };
        let collective = Collective::Broadcast { root, count };
        self.start(buf.py(), (collective, kind, false), buffers, None, start)
    }

    pub fn gather<R>(&self, sent: Spec<'_, '_>, received: Spec<'_, '_>, root: i64, start: Start<R>) -> PyResult<R> {
        let (root, is_root) = self.root(sent.py(), root)?;
        let gather = |count| Collective::Gather {
            root,
            blocks: Blocks::Equal(count),
        };
        if !is_root {
            let part = BufferPart::of(sent, Read, SENT)?;
            let call = (gather(part.count), part.kind, false);
            return self.start(sent.py(), call, (part, BufferPart::none()), None, start);
        }
        let mut into = BufferPart::of_blocks(received, Write, self.size, RECEIVED)?;
        let (part, is_in_place) = own_buffer(sent, Read, 1, &mut into)?;
        let call = (gather(into.count), into.kind, is_in_place);
        self.start(sent.py(), call, (part, into), None, start)
    }

    pub fn gatherv<R>(&self, sent: Spec<'_, '_>, received: Spec<'_, '_>, root: i64, start: Start<R>) -> PyResult<R> {
        let (root, is_root) = self.root(sent.py(), root)?;
        let gatherv = |mine, blocks| Collective::Gatherv { root, mine, blocks };
        if !is_root {
            let part = BufferPart::of(sent, Read, SENT)?;
            let call = (gatherv(part.count, Blocks::Equal(0)), part.kind, false);
            return self.start(sent.py(), call, (part, BufferPart::none()), None, start);
        }
        let into = BufferBlocks::of(received, Write, self.size, RECEIVED)?;
        let (part, mut into, is_in_place) = self.own_block(sent, Read, into)?;
        let memory = into.take_part();
        let call = (
            gatherv(into.blocks().count(self.rank), into.blocks()),
            memory.kind,
            is_in_place,
        );
        self.start(sent.py(), call, (part, memory), None, start)
    }

    /// Reads this rank's own buffer. `blocks`: the blocks of all ranks. Also returns the blocks, and whether the data
    /// is in place.
    fn own_block(
        &self,
        spec: Spec<'_, '_>,
        access: BufferAccess,
        blocks: BufferBlocks,
    ) -> PyResult<(BufferPart, BufferBlocks, bool)> {
        if check_in_place(spec)? {
            return Ok((BufferPart::none(), blocks, true));
        }
        let (what, does) = match access {
            Read => (SENT, "gives"),
            Write => (RECEIVED, "takes"),
        };
        let (own, blocks) = unify_block_types(BufferPart::of(spec, access, what)?, blocks);
        block_fits(&blocks, self.rank, own.count, does, own.kind)?;
        Ok((own, blocks, false))
    }

    pub fn scatter<R>(&self, sent: Spec<'_, '_>, received: Spec<'_, '_>, root: i64, start: Start<R>) -> PyResult<R> {
        let (root, is_root) = self.root(sent.py(), root)?;
        let scatter = |count| Collective::Scatter {
            root,
            blocks: Blocks::Equal(count),
        };
        if !is_root {
            let into = BufferPart::of(received, Write, RECEIVED)?;
            let call = (scatter(into.count), into.kind, false);
            return self.start(sent.py(), call, (BufferPart::none(), into), None, start);
        }
        let mut part = BufferPart::of_blocks(sent, Read, self.size, SENT)?;
        let (into, is_in_place) = own_buffer(received, Write, 1, &mut part)?;
        let call = (scatter(part.count), part.kind, is_in_place);
        self.start(sent.py(), call, (part, into), None, start)
    }

    pub fn scatterv<R>(&self, sent: Spec<'_, '_>, received: Spec<'_, '_>, root: i64, start: Start<R>) -> PyResult<R> {
        let (root, is_root) = self.root(sent.py(), root)?;
        let scatterv = |mine, blocks| Collective::Scatterv { root, mine, blocks };
        if !is_root {
            let into = BufferPart::of(received, Write, RECEIVED)?;
            let call = (scatterv(into.count, Blocks::Equal(0)), into.kind, false);
            return self.start(sent.py(), call, (BufferPart::none(), into), None, start);
        }
        let from = BufferBlocks::of(sent, Read, self.size, SENT)?;
        let (into, mut from, is_in_place) = self.own_block(received, Write, from)?;
        let memory = from.take_part();
        let call = (
            scatterv(from.blocks().count(self.rank), from.blocks()),
            memory.kind,
            is_in_place,
        );
        self.start(sent.py(), call, (memory, into), None, start)
    }

    pub fn allgather<R>(&self, sent: Spec<'_, '_>, received: Spec<'_, '_>, start: Start<R>) -> PyResult<R> {
        let mut into = BufferPart::of_blocks(received, Write, self.size, RECEIVED)?;
        let (part, is_in_place) = own_buffer(sent, Read, 1, &mut into)?;
        let blocks = Blocks::Equal(into.count);
        let call = (Collective::Allgather { blocks }, into.kind, is_in_place);
        self.start(sent.py(), call, (part, into), None, start)
    }

    pub fn allgatherv<R>(&self, sent: Spec<'_, '_>, received: Spec<'_, '_>, start: Start<R>) -> PyResult<R> {
        let into = BufferBlocks::of(received, Write, self.size, RECEIVED)?;
        let (part, mut into, is_in_place) = self.own_block(sent, Read, into)?;
        let memory = into.take_part();
        let blocks = into.blocks();
        let call = (Collective::Allgather { blocks }, memory.kind, is_in_place);
        self.start(sent.py(), call, (part, memory), None, start)
    }

    pub fn alltoall<R>(&self, sent: Spec<'_, '_>, received: Spec<'_, '_>, start: Start<R>) -> PyResult<R> {
        let mut into = BufferPart::of_blocks(received, Write, self.size, RECEIVED)?;
        let (part, is_in_place) = own_buffer(sent, Read, self.size, &mut into)?;
        let call = (Collective::Alltoall { count: into.count }, into.kind, is_in_place);
        self.start(sent.py(), call, (part, into), None, start)
    }

    /// Exchanges blocks. `blocks` reads their description: [`BufferBlocks::of`] if all have one type, or
    /// [`BufferBlocks::of_types`] if each has a type of its own.
    pub fn alltoallv<R>(
        &self,
        sent: Spec<'_, '_>,
        received: Spec<'_, '_>,
        blocks: fn(Spec<'_, '_>, BufferAccess, usize, &str) -> PyResult<BufferBlocks>,
        start: Start<R>,
    ) -> PyResult<R> {
        let mut into = blocks(received, Write, self.size, RECEIVED)?;
        let is_in_place = check_in_place(sent)?;
        let mut from = BufferBlocks::none();
        if !is_in_place {
            from = blocks(sent, Read, self.size, SENT)?;
            if from.part.kind != into.part.kind {
                (from, into) = (from.into_bytes(), into.into_bytes());
            }
        }
        let (part, memory) = (from.take_part(), into.take_part());
        let received = into.blocks();
        let collective = Collective::Alltoallv {
            sent: if is_in_place { received } else { from.blocks() },
            received,
        };
        self.start(
            sent.py(),
            (collective, memory.kind, is_in_place),
            (part, memory),
            None,
            start,
        )
    }

    /// Reads the buffers of a reduction. Also returns whether it is in place: `IN_PLACE` is given, or both buffers are
    /// the same memory.
    fn reduction_buffers(
        &self,
        sent: Spec<'_, '_>,
        received: Spec<'_, '_>,
    ) -> PyResult<(BufferPart, BufferPart, bool)> {
        let into = BufferPart::of(received, Write, RECEIVED)?;
        if check_in_place(sent)? {
            return Ok((BufferPart::none(), into, true));
        }
        let part = BufferPart::of(sent, Read, SENT)?;
        check_bytes(&part, &into)?;
        check_types(&part, &into)?;
        if part.count > 0 && part.address() == into.address() {
            return Ok((BufferPart::none(), into, true));
        }
        Ok((part, into, false))
    }

    pub fn reduce<R>(
        &self,
        sent: Spec<'_, '_>,
        received: Spec<'_, '_>,
        op: &Bound<'_, Op>,
        root: i64,
        start: Start<R>,
    ) -> PyResult<R> {
        let (root, is_root) = self.root(sent.py(), root)?;
        let (part, into, is_in_place) = match is_root {
            true => self.reduction_buffers(sent, received)?,
            false => (BufferPart::of(sent, Read, SENT)?, BufferPart::none(), false),
        };
        let given = if is_root { &into } else { &part };
        let (count, kind) = (given.count, given.kind);
        let (operator, raised) = op.get().operator(sent.py(), given)?;
        let operator = &operator;
        let call = (Collective::Reduce { root, count, operator }, kind, is_in_place);
        self.start(sent.py(), call, (part, into), raised, start)
    }

    /// Starts a reduction whose result has the same number of elements as the data of each rank.
    pub fn reduce_all<R>(
        &self,
        sent: Spec<'_, '_>,
        received: Spec<'_, '_>,
        op: &Bound<'_, Op>,
        collective: for<'a> fn(usize, &'a Operator) -> Collective<'a>,
        start: Start<R>,
    ) -> PyResult<R> {
        let (part, into, is_in_place) = self.reduction_buffers(sent, received)?;
        let (operator, raised) = op.get().operator(sent.py(), &into)?;
        let call = (collective(into.count, &operator), into.kind, is_in_place);
        self.start(sent.py(), call, (part, into), raised, start)
    }

    pub fn reduce_scatter_block<R>(
        &self,
        sent: Spec<'_, '_>,
        received: Spec<'_, '_>,
        op: &Bound<'_, Op>,
        start: Start<R>,
    ) -> PyResult<R> {
        let is_in_place = check_in_place(sent)?;
        let (part, into) = if is_in_place {
            (
                BufferPart::none(),
                BufferPart::of_blocks(received, Write, self.size, RECEIVED)?,
            )
        } else {
            let into = BufferPart::of(received, Write, RECEIVED)?;
            let part = BufferPart::of_blocks(sent, Read, self.size, SENT)?;
            check_bytes(&part, &into)?;
            check_types(&part, &into)?;
            (part, into)
        };
        let blocks = Blocks::Equal(into.count);
        let (operator, raised) = op.get().operator(sent.py(), &into)?;
        let operator = &operator;
        let call = (Collective::ReduceScatter { blocks, operator }, into.kind, is_in_place);
        self.start(sent.py(), call, (part, into), raised, start)
    }

    pub fn reduce_scatter<R>(
        &self,
        sent: Spec<'_, '_>,
        received: Spec<'_, '_>,
        counts: Option<Vec<usize>>,
        op: &Bound<'_, Op>,
        start: Start<R>,
    ) -> PyResult<R> {
        let is_in_place = check_in_place(sent)?;
        let into = BufferPart::of(received, Write, RECEIVED)?;
        let (operator, raised) = op.get().operator(sent.py(), &into)?;
        let operator = &operator;
        let counts = match counts {
            Some(counts) if counts.len() == self.size => counts,
            Some(counts) => {
                let (given, size) = (counts.len(), self.size);
                return Err(PyValueError::new_err(format!("{given} counts for {size} ranks")));
            }
            None if is_in_place => {
                return Err(PyValueError::new_err(
                    "in place, recvcounts says how long each rank's block is",
                ));
            }
            None => self.counts_of_all(sent.py(), into.count)?,
        };
        let part = if is_in_place {
            BufferPart::none()
        } else {
            BufferPart::of(sent, Read, SENT)?
        };
        let total = counts.iter().fold(0usize, |sum, count| sum.saturating_add(*count));
        let (all, mine) = if is_in_place {
            (into.count, counts[self.rank])
        } else {
            (part.count, into.count)
        };
        if all != total || mine != counts[self.rank] {
            return Err(PyValueError::new_err(format!(
                "recvcounts has {total} elements in all, {} of this rank; but {all} are reduced, and {mine} received",
                counts[self.rank]
            )));
        }
        if !is_in_place {
            check_types(&part, &into)?;
        }
        let blocks = Blocks::Each {
            counts: &counts,
            displacements: &Blocks::consecutive_starts(&counts),
        };
        let call = (Collective::ReduceScatter { blocks, operator }, into.kind, is_in_place);
        self.start(sent.py(), call, (part, into), raised, start)
    }

    /// Gathers the element count of each rank.
    fn counts_of_all(&self, py: Python<'_>, mine: usize) -> PyResult<Vec<usize>> {
        let (shared, size) = (Arc::clone(&self.shared), self.size);
        let told = interruptible(py, move || {
            let mut all = vec![0u64; size];
            shared.allgather(&[mine as u64], &mut all).map(|()| all)
        })?;
        let all = told.map_err(|error| failure::of(py, &error))?;
        let count = |count| usize::try_from(count).unwrap_or(usize::MAX);
        Ok(all.into_iter().map(count).collect())
    }
}

/// Reads this rank's own buffer of `blocks` blocks, each as long as a block of `all`. Also returns whether the data is
/// in place; the buffer is then empty.
fn own_buffer(
    spec: Spec<'_, '_>,
    access: BufferAccess,
    blocks: usize,
    all: &mut BufferPart,
) -> PyResult<(BufferPart, bool)> {
    if check_in_place(spec)? {
        return Ok((BufferPart::none(), true));
    }
    let mut own = BufferPart::of_blocks(spec, access, blocks, if access == Read { SENT } else { RECEIVED })?;
    match access {
        Read => check_bytes(&own, all)?,
        Write => check_bytes(all, &own)?,
    }
    unify_types(&mut own, all);
    Ok((own, false))
}

/// Gives the buffer and the blocks the same type: bytes if their types differ.
fn unify_block_types(mut part: BufferPart, pieces: BufferBlocks) -> (BufferPart, BufferBlocks) {
    if part.kind == pieces.part.kind {
        return (part, pieces);
    }
    part.as_bytes();
    (part, pieces.into_bytes())
}

fn block_fits(pieces: &BufferBlocks, rank: usize, count: usize, does: &str, kind: Kind) -> PyResult<()> {
    let block = pieces.blocks().count(rank);
    if block == count {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "this rank {does} {count} elements of {kind}, but its block in the list of all ranks has {block}"
    )))
}

/// Checks that both buffers of a reduction are of one type.
fn check_types(part: &BufferPart, into: &BufferPart) -> PyResult<()> {
    if part.kind == into.kind {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "{SENT} is of {}, and {RECEIVED} of {}; what is reduced has to be of one type",
        part.kind, into.kind
    )))
}
