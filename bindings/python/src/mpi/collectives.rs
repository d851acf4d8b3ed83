//! Preparation of collectives from the arguments of a call. Counts and types that do not match are rejected first.

use super::buffer_spec::{BufferBlocks, BufferPart};
use super::failure;
use super::member::{Member, SharedCommunicator, interruptible};
use super::operator::Op;
use super::pinned_buffer::BufferAccess::{Read, Write};
use super::prepared::{BlockLists, CollectiveKind, Prepared};
use hotlease_comm::Datatype as Kind;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::sync::{Arc, OnceLock};

const SENT: &str = "the send buffer";
const RECEIVED: &str = "the receive buffer";

type Spec<'a, 'py> = &'a Bound<'py, PyAny>;

/// `MPI.IN_PLACE`.
static IN_PLACE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

fn check_in_place(spec: Spec<'_, '_>) -> PyResult<bool> {
    let py = spec.py();
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

/// File and line of the calling program, if collectives are checked: errors name it.
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

/// Makes the send and the receive buffer of one type: as bytes if they are of two.
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
        "{SENT} gives {} elements of {}, and {RECEIVED} takes {} of {}; they have to be as many bytes",
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
            let text = format!("the root is rank {root}, of a communicator of {}", self.size);
            failure::found(py, "Root", text)
        })?;
        Ok((known, known as usize == self.rank))
    }

    pub fn barrier(&self) -> Prepared {
        Prepared::of(
            CollectiveKind::Barrier,
            Kind::Bytes,
            (BufferPart::none(), 0),
            (BufferPart::none(), 0),
        )
    }

    pub fn broadcast(&self, buf: Spec<'_, '_>, root: i64) -> PyResult<Prepared> {
        let (root, is_root) = self.root(buf.py(), root)?;
        let part = BufferPart::of(buf, if is_root { Read } else { Write }, "the buffer")?;
        let (count, kind) = (part.count, part.kind);
        let shape = CollectiveKind::Broadcast { root, count };
        Ok(match is_root {
            true => Prepared::of(shape, kind, (part, count), (BufferPart::none(), 0)),
            false => Prepared::of(shape, kind, (BufferPart::none(), 0), (part, count)),
        })
    }

    pub fn gather(&self, sent: Spec<'_, '_>, received: Spec<'_, '_>, root: i64) -> PyResult<Prepared> {
        let (root, is_root) = self.root(sent.py(), root)?;
        if !is_root {
            let part = BufferPart::of(sent, Read, SENT)?;
            let (count, kind) = (part.count, part.kind);
            return Ok(Prepared::of(
                CollectiveKind::Gather { root, count },
                kind,
                (part, count),
                (BufferPart::none(), 0),
            ));
        }
        let mut into = BufferPart::of_blocks(received, Write, self.size, RECEIVED)?;
        let is_in_place = check_in_place(sent)?;
        let mut part = BufferPart::none();
        if !is_in_place {
            part = BufferPart::of(sent, Read, SENT)?;
            check_bytes(&part, &into)?;
            unify_types(&mut part, &mut into);
        }
        let (count, kind, given) = (into.count, into.kind, part.count);
        let shape = CollectiveKind::Gather { root, count };
        Ok(Prepared::of(shape, kind, (part, given), (into, count * self.size)).in_place(is_in_place))
    }

    pub fn gatherv(&self, sent: Spec<'_, '_>, received: Spec<'_, '_>, root: i64) -> PyResult<Prepared> {
        let (root, is_root) = self.root(sent.py(), root)?;
        if !is_root {
            let part = BufferPart::of(sent, Read, SENT)?;
            let (mine, kind) = (part.count, part.kind);
            let all = (vec![0; self.size], vec![0; self.size]);
            let shape = CollectiveKind::Gatherv { root, mine, all };
            return Ok(Prepared::of(shape, kind, (part, mine), (BufferPart::none(), 0)));
        }
        let into = BufferBlocks::of(received, Write, self.size, RECEIVED)?;
        let (part, into, is_in_place) = self.own_part(sent, into)?;
        let (extent, kind) = (into.blocks().extent(self.size), into.kind());
        let (memory, counts, displacements) = into.into_parts();
        let (mine, given) = (counts[self.rank], part.count);
        let all = (counts, displacements);
        let shape = CollectiveKind::Gatherv { root, mine, all };
        Ok(Prepared::of(shape, kind, (part, given), (memory, extent)).in_place(is_in_place))
    }

    /// This rank's part of what all ranks send, which goes into the blocks `into`.
    fn own_part(&self, sent: Spec<'_, '_>, into: BufferBlocks) -> PyResult<(BufferPart, BufferBlocks, bool)> {
        if check_in_place(sent)? {
            return Ok((BufferPart::none(), into, true));
        }
        let part = BufferPart::of(sent, Read, SENT)?;
        let (part, into) = unify_block_types(part, into);
        block_fits(&into, self.rank, part.count, "gives", part.kind)?;
        Ok((part, into, false))
    }

    pub fn scatter(&self, sent: Spec<'_, '_>, received: Spec<'_, '_>, root: i64) -> PyResult<Prepared> {
        let (root, is_root) = self.root(sent.py(), root)?;
        if !is_root {
            let into = BufferPart::of(received, Write, RECEIVED)?;
            let (count, kind) = (into.count, into.kind);
            return Ok(Prepared::of(
                CollectiveKind::Scatter { root, count },
                kind,
                (BufferPart::none(), 0),
                (into, count),
            ));
        }
        let mut part = BufferPart::of_blocks(sent, Read, self.size, SENT)?;
        let is_in_place = check_in_place(received)?;
        let mut into = BufferPart::none();
        if !is_in_place {
            into = BufferPart::of(received, Write, RECEIVED)?;
            check_bytes(&part, &into)?;
            unify_types(&mut part, &mut into);
        }
        let (count, kind, got) = (part.count, part.kind, into.count);
        let shape = CollectiveKind::Scatter { root, count };
        Ok(Prepared::of(shape, kind, (part, count * self.size), (into, got)).in_place(is_in_place))
    }

    pub fn scatterv(&self, sent: Spec<'_, '_>, received: Spec<'_, '_>, root: i64) -> PyResult<Prepared> {
        let (root, is_root) = self.root(sent.py(), root)?;
        if !is_root {
            let into = BufferPart::of(received, Write, RECEIVED)?;
            let (mine, kind) = (into.count, into.kind);
            let all = (vec![0; self.size], vec![0; self.size]);
            let shape = CollectiveKind::Scatterv { root, mine, all };
            return Ok(Prepared::of(shape, kind, (BufferPart::none(), 0), (into, mine)));
        }
        let mut from = BufferBlocks::of(sent, Read, self.size, SENT)?;
        let is_in_place = check_in_place(received)?;
        let mut into = BufferPart::none();
        if !is_in_place {
            (into, from) = unify_block_types(BufferPart::of(received, Write, RECEIVED)?, from);
            block_fits(&from, self.rank, into.count, "takes", into.kind)?;
        }
        let (extent, kind) = (from.blocks().extent(self.size), from.kind());
        let (memory, counts, displacements) = from.into_parts();
        let (mine, got) = (counts[self.rank], into.count);
        let all = (counts, displacements);
        let shape = CollectiveKind::Scatterv { root, mine, all };
        Ok(Prepared::of(shape, kind, (memory, extent), (into, got)).in_place(is_in_place))
    }

    pub fn allgather(&self, sent: Spec<'_, '_>, received: Spec<'_, '_>) -> PyResult<Prepared> {
        let mut into = BufferPart::of_blocks(received, Write, self.size, RECEIVED)?;
        let is_in_place = check_in_place(sent)?;
        let mut part = BufferPart::none();
        if !is_in_place {
            part = BufferPart::of(sent, Read, SENT)?;
            check_bytes(&part, &into)?;
            unify_types(&mut part, &mut into);
        }
        let (count, kind, given) = (into.count, into.kind, part.count);
        let output = (into, count * self.size);
        Ok(Prepared::of(CollectiveKind::Allgather { count }, kind, (part, given), output).in_place(is_in_place))
    }

    pub fn allgatherv(&self, sent: Spec<'_, '_>, received: Spec<'_, '_>) -> PyResult<Prepared> {
        let into = BufferBlocks::of(received, Write, self.size, RECEIVED)?;
        let (part, into, is_in_place) = self.own_part(sent, into)?;
        let (extent, kind, given) = (into.blocks().extent(self.size), into.kind(), part.count);
        let (memory, counts, displacements) = into.into_parts();
        let all = (counts, displacements);
        let shape = CollectiveKind::Allgatherv { all };
        Ok(Prepared::of(shape, kind, (part, given), (memory, extent)).in_place(is_in_place))
    }

    pub fn alltoall(&self, sent: Spec<'_, '_>, received: Spec<'_, '_>) -> PyResult<Prepared> {
        let mut into = BufferPart::of_blocks(received, Write, self.size, RECEIVED)?;
        let is_in_place = check_in_place(sent)?;
        let mut part = BufferPart::none();
        if !is_in_place {
            part = BufferPart::of_blocks(sent, Read, self.size, SENT)?;
            check_bytes(&part, &into)?;
            unify_types(&mut part, &mut into);
        }
        let (count, kind, given) = (into.count, into.kind, part.count * self.size);
        let output = (into, count * self.size);
        Ok(Prepared::of(CollectiveKind::Alltoall { count }, kind, (part, given), output).in_place(is_in_place))
    }

    pub fn alltoallv(&self, sent: Spec<'_, '_>, received: Spec<'_, '_>) -> PyResult<Prepared> {
        let mut into = BufferBlocks::of(received, Write, self.size, RECEIVED)?;
        if check_in_place(sent)? {
            let (extent, kind) = (into.blocks().extent(self.size), into.kind());
            let (memory, counts, displacements) = into.into_parts();
            let shape = CollectiveKind::Alltoallv {
                sent: (vec![0; self.size], vec![0; self.size]),
                received: (counts, displacements),
            };
            return Ok(Prepared::of(shape, kind, (BufferPart::none(), 0), (memory, extent)).in_place(true));
        }
        let mut from = BufferBlocks::of(sent, Read, self.size, SENT)?;
        if from.kind() != into.kind() {
            (from, into) = (from.into_bytes(), into.into_bytes());
        }
        let kind = into.kind();
        let (given, got) = (from.blocks().extent(self.size), into.blocks().extent(self.size));
        let (part, counts, displacements) = from.into_parts();
        let sent = (counts, displacements);
        let (memory, counts, displacements) = into.into_parts();
        let received = (counts, displacements);
        Ok(Prepared::of(
            CollectiveKind::Alltoallv { sent, received },
            kind,
            (part, given),
            (memory, got),
        ))
    }

    /// Buffers of a reduction, and whether it is in place: `IN_PLACE` is given, or both are the same memory.
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

    pub fn reduce(
        &self,
        sent: Spec<'_, '_>,
        received: Spec<'_, '_>,
        op: &Bound<'_, Op>,
        root: i64,
    ) -> PyResult<Prepared> {
        let (root, is_root) = self.root(sent.py(), root)?;
        let operator = op.get().operator(sent.py())?;
        if !is_root {
            let part = BufferPart::of(sent, Read, SENT)?;
            let (count, kind) = (part.count, part.kind);
            let shape = CollectiveKind::Reduce { root, count };
            return Ok(Prepared::of(shape, kind, (part, count), (BufferPart::none(), 0)).with_operator(operator));
        }
        let (part, into, is_in_place) = self.reduction_buffers(sent, received)?;
        let (count, kind, given) = (into.count, into.kind, part.count);
        let shape = CollectiveKind::Reduce { root, count };
        Ok(Prepared::of(shape, kind, (part, given), (into, count))
            .in_place(is_in_place)
            .with_operator(operator))
    }

    fn to_all(
        &self,
        sent: Spec<'_, '_>,
        received: Spec<'_, '_>,
        op: &Bound<'_, Op>,
        shape: impl FnOnce(usize) -> CollectiveKind,
    ) -> PyResult<Prepared> {
        let operator = op.get().operator(sent.py())?;
        let (part, into, is_in_place) = self.reduction_buffers(sent, received)?;
        let (count, kind, given) = (into.count, into.kind, part.count);
        let asked = Prepared::of(shape(count), kind, (part, given), (into, count));
        Ok(asked.in_place(is_in_place).with_operator(operator))
    }

    pub fn allreduce(&self, sent: Spec<'_, '_>, received: Spec<'_, '_>, op: &Bound<'_, Op>) -> PyResult<Prepared> {
        self.to_all(sent, received, op, |count| CollectiveKind::Allreduce { count })
    }

    pub fn scan(&self, sent: Spec<'_, '_>, received: Spec<'_, '_>, op: &Bound<'_, Op>) -> PyResult<Prepared> {
        self.to_all(sent, received, op, |count| CollectiveKind::Scan { count })
    }

    pub fn exscan(&self, sent: Spec<'_, '_>, received: Spec<'_, '_>, op: &Bound<'_, Op>) -> PyResult<Prepared> {
        self.to_all(sent, received, op, |count| CollectiveKind::Exscan { count })
    }

    pub fn reduce_scatter_block(
        &self,
        sent: Spec<'_, '_>,
        received: Spec<'_, '_>,
        op: &Bound<'_, Op>,
    ) -> PyResult<Prepared> {
        let operator = op.get().operator(sent.py())?;
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
        let count = into.count;
        let places = (0..self.size).map(|rank| rank * count).collect();
        self.reduce_scatter_of(part, into, (vec![count; self.size], places), is_in_place)
            .map(|asked| asked.with_operator(operator))
    }

    pub fn reduce_scatter(
        &self,
        sent: Spec<'_, '_>,
        received: Spec<'_, '_>,
        counts: Option<Vec<usize>>,
        op: &Bound<'_, Op>,
    ) -> PyResult<Prepared> {
        let operator = op.get().operator(sent.py())?;
        let is_in_place = check_in_place(sent)?;
        let into = BufferPart::of(received, Write, RECEIVED)?;
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
                "recvcounts is {total} elements together and {} of this rank; {all} are to be reduced, and {mine} received",
                counts[self.rank]
            )));
        }
        if !is_in_place {
            check_types(&part, &into)?;
        }
        let places = counts.iter().scan(0, |next, count| {
            let place = *next;
            *next += count;
            Some(place)
        });
        let places = places.collect();
        self.reduce_scatter_of(part, into, (counts, places), is_in_place)
            .map(|asked| asked.with_operator(operator))
    }

    fn reduce_scatter_of(
        &self,
        part: BufferPart,
        into: BufferPart,
        all: BlockLists,
        is_in_place: bool,
    ) -> PyResult<Prepared> {
        let (total, kind) = (all.0.iter().sum(), into.kind);
        let own = all.0[self.rank];
        let (given, got) = if is_in_place { (0, total) } else { (total, own) };
        let shape = CollectiveKind::ReduceScatter { all };
        Ok(Prepared::of(shape, kind, (part, given), (into, got)).in_place(is_in_place))
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

/// Makes the buffer and the blocks of one type: as bytes if they are of two.
fn unify_block_types(mut part: BufferPart, pieces: BufferBlocks) -> (BufferPart, BufferBlocks) {
    if part.kind == pieces.kind() {
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
        "this rank {does} {count} elements of {kind}, and its block among those of all ranks has {block}"
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
