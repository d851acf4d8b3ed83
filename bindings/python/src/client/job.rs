//! A task on its way: what is sent, and what is kept to send it again.

use super::away::Away;
use super::cell::Cell;
use super::expected::Expected;
use super::memory::{Extent, HEADROOM};
use hotlease_client::Code;
use hotlease_flow::TaskId;
use hotlease_wire::task::{ALIGNED_FROM, ALIGNMENT, Key, Layout, Request, place_results, request};
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

/// A function that tasks call, by its content.
pub struct Target {
    /// Its name on the wire.
    pub key: Key,
    /// What workers are sent of it.
    pub blob: Blob,
    /// Whether it may run again after a worker died of it.
    pub idempotent: bool,
    /// As people call it.
    pub name: Box<str>,
    /// How its tasks are treated, where it says so.
    pub plan: Plan,
    /// A hash of what it does, for memoisation, once somebody has asked.
    pub content: OnceLock<[u8; 32]>,
    /// How large its next result is likely to be.
    pub expected: Expected,
}

/// What a function is made of.
pub enum Blob {
    /// A pickle that gives a callable.
    Pickle(Box<[u8]>),
    /// The library of a native one, which others may be in, too.
    Library(Code),
}

impl Deref for Blob {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Pickle(bytes) => bytes,
            Self::Library(code) => code.bytes(),
        }
    }
}

/// How a task is treated, apart from running it: what nobody said is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// How often it is tried again after it raised something.
    pub retries: Option<u16>,
    /// Higher ones first.
    pub priority: Option<i32>,
    /// Whether its result is remembered.
    pub memo: Option<Memo>,
    /// Whether it may run again after its worker died.
    pub idempotent: Option<bool>,
}

/// Under which key a result is remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Memo {
    /// None.
    Not,
    /// Of its function and arguments.
    Content,
    /// This one.
    Key(Box<[u8; 32]>),
}

impl Plan {
    /// What this one says, else the other one.
    pub fn or(&self, other: &Self) -> Self {
        Self {
            retries: self.retries.or(other.retries),
            priority: self.priority.or(other.priority),
            memo: self.memo.clone().or_else(|| other.memo.clone()),
            idempotent: self.idempotent.or(other.idempotent),
        }
    }

    /// Whether nothing is asked for that needs the graph.
    pub fn is_plain(&self) -> bool {
        self.retries.unwrap_or(0) == 0 && matches!(self.memo, None | Some(Memo::Not))
    }
}

/// A whole request, without its function.
pub enum Payload {
    /// In memory of this process: it fits a ring entry, or waits for shared memory.
    Own(Box<[u8]>),
    /// In shared memory.
    Shared(Box<Extent>),
}

impl Payload {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(extent) => extent.bytes(),
        }
    }

    /// Of one that nobody writes to.
    pub fn copy(&self) -> Self {
        match self {
            Self::Own(bytes) => Self::Own(bytes.clone()),
            Self::Shared(extent) => Self::Shared(extent.clone()),
        }
    }

    /// Asks for the time that the function takes; of a request that nobody else has yet.
    pub fn ask_time(&mut self) {
        match self {
            Self::Own(bytes) => bytes[1] |= request::TIMED,
            Self::Shared(extent) => **extent = with_flag(extent, request::TIMED, true),
        }
    }
}

/// Sets or takes a flag of a request, unless that is so already.
#[inline]
pub fn set_flag(bytes: &mut [u8], flag: u8, is_set: bool) {
    if (bytes[1] & flag != 0) != is_set {
        bytes[1] ^= flag;
    }
}

/// The same request with a flag or without; of one that nobody looks at now.
pub fn with_flag(extent: &Extent, flag: u8, is_set: bool) -> Extent {
    // It is longer: such a request has a buffer, or a result, which begins there at the earliest.
    let front = extent.bytes().first_chunk::<ALIGNMENT>().copied();
    let same = front.and_then(|mut front| {
        front[1] = front[1] & !flag | if is_set { flag } else { 0 };
        extent.put_before(ALIGNMENT, &front)
    });
    same.unwrap_or_else(|| extent.clone())
}

/// A task.
pub struct Job {
    pub cell: Arc<Cell>,
    pub target: Arc<Target>,
    pub payload: Payload,
    /// Workers that died of it.
    pub deaths: u8,
    /// Workers that ended before they began with it.
    pub moves: u8,
    /// It was sent before: it cannot be cancelled any more.
    pub sent: bool,
    /// It prepares a worker: nobody waits for it, but everybody for what it does.
    pub prepares: bool,
    /// Higher ones are sent first.
    pub priority: i32,
    /// Whether it may run again after its worker died.
    pub idempotent: bool,
    /// What the graph calls it, and which run of it this is; `None`: the graph does not know it, or only waits for it.
    pub node: Option<(TaskId, u32)>,
    /// The slot that has most of what it needs.
    pub near: Option<usize>,
    /// Whether its result may stay with its worker.
    pub stays: bool,
    /// A result that it needs is elsewhere, and its worker gets it from there.
    pub has_left: bool,
    /// It is none, but something else that is asked of a worker.
    pub errand: Option<Box<Errand>>,
}

/// What is asked of a worker beside tasks.
pub enum Errand {
    /// A result that stayed with it.
    Fetch(Arc<Away>),
    /// To forget some of these.
    Release,
}

impl Job {
    /// A task that was not sent.
    pub fn new(cell: Arc<Cell>, target: Arc<Target>, payload: Payload) -> Self {
        Self {
            idempotent: target.idempotent,
            priority: 0,
            node: None,
            cell,
            target,
            payload,
            deaths: 0,
            moves: 0,
            sent: false,
            prepares: false,
            near: None,
            stays: true,
            has_left: false,
            errand: None,
        }
    }

    /// What is no task; `target` only says whose it is.
    pub fn errand(errand: Errand, target: Arc<Target>, payload: Box<[u8]>) -> Self {
        let mut job = Self::new(Arc::new(Cell::new(None)), target, Payload::Own(payload));
        (job.idempotent, job.sent, job.stays) = (false, true, false);
        job.errand = Some(Box::new(errand));
        job
    }

    /// Bytes that it keeps.
    pub fn size(&self) -> usize {
        self.payload.bytes().len()
    }

    /// Whether all of it may have to be copied to be sent.
    pub fn is_copied(&self) -> bool {
        let is_shared = matches!(self.payload, Payload::Shared(_));
        self.idempotent || !is_shared || self.target.blob.len() > HEADROOM / 2
    }
}

/// A request that is put together: one without a function or results, and these.
pub struct Whole<'a> {
    bytes: &'a [u8],
    without: Request,
    head: Vec<u8>,
    blob: &'a [u8],
    layout: Layout,
    results: Vec<&'a [u8]>,
    places: Vec<(usize, usize)>,
    end: usize,
}

impl<'a> Whole<'a> {
    /// The same request with its function in it. `None` where that is larger than any memory.
    pub fn with_function(bytes: &'a [u8], target: &'a Target) -> Option<Self> {
        let without = decoded(bytes)?;
        let results = without.results.iter();
        let results = results.map(|&(start, length)| &bytes[start..][..length]);
        let results = results.collect();
        Self::new(bytes, without, target, &target.blob, results)
    }

    /// The same request with results of other tasks in it. `None` where there are too many, or they are larger than any
    /// memory.
    pub fn with_results(bytes: &'a [u8], target: &'a Target, results: Vec<&'a [u8]>) -> Option<Self> {
        Self::new(bytes, decoded(bytes)?, target, &[], results)
    }

    fn new(
        bytes: &'a [u8],
        without: Request,
        target: &Target,
        blob: &'a [u8],
        results: Vec<&'a [u8]>,
    ) -> Option<Self> {
        let arguments = &without.arguments;
        let lengths: Vec<usize> = arguments.buffers.iter().map(|(_, length)| *length).collect();
        let result_lengths: Vec<usize> = results.iter().map(|result| result.len()).collect();
        let (kind, writable, pickle_bytes) = (without.kind, without.writable, arguments.pickle_bytes);
        let mut head = Request::head(
            kind,
            writable,
            &target.key,
            blob.len(),
            pickle_bytes,
            &lengths,
            &result_lengths,
        )?;
        if without.timed {
            head[1] |= request::TIMED;
        }
        let layout = Layout::new(head.len().checked_add(blob.len())?, pickle_bytes, lengths)?;
        let (places, end) = place_results(layout.end, result_lengths)?;
        Some(Self {
            bytes,
            without,
            head,
            blob,
            layout,
            results,
            places,
            end,
        })
    }

    /// Bytes of it.
    pub fn len(&self) -> usize {
        self.end
    }

    /// Its parts, and where they begin.
    fn parts(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let arguments = &self.without.arguments;
        let pickle = &self.bytes[arguments.pickle..][..arguments.pickle_bytes];
        let fixed = [
            (0, &*self.head),
            (self.head.len(), self.blob),
            (self.layout.pickle, pickle),
        ];
        let buffers = self.layout.buffers.iter().zip(&arguments.buffers);
        let buffers = buffers.map(|(&(start, length), &(from, _))| (start, &self.bytes[from..][..length]));
        let results = self.places.iter().zip(&self.results);
        let results = results.map(|(&(start, _), &result)| (start, result));
        fixed.into_iter().chain(buffers).chain(results)
    }

    /// Writes it into so many bytes, or its first ones up to where a part of it begins.
    pub fn fill(&self, into: &mut [u8]) {
        let (mut end, until) = (0, into.len());
        for (start, bytes) in self.parts().take_while(|(start, _)| *start < until) {
            // What was in the memory before is nobody's business.
            into[end..start].fill(0);
            end = start + bytes.len();
            into[start..end].copy_from_slice(bytes);
        }
        into[end..].fill(0);
    }

    /// Of the request that this one is made of: where its first part begins whose distance to all that follows stays the same,
    /// and what comes before that now. `None` where there is no such part, or no room.
    pub fn front(&self, of: &Extent) -> Option<(usize, Vec<u8>)> {
        let arguments = &self.without.arguments;
        let (from, until) = match (arguments.buffers.first(), self.without.results.first()) {
            (Some(&(from, _)), _) => (from, self.layout.buffers[0].0),
            (None, Some(&(from, length))) if length >= ALIGNED_FROM => (from, self.places[0].0),
            _ => return None,
        };
        of.has_room_before(from, until)
            .then(|| (from, self.before(until)))
    }

    /// What comes before its only result of another task, for which there is room before that.
    pub fn before_result(&self, of: &Extent) -> Option<Vec<u8>> {
        let &[(until, _)] = &*self.places else { return None };
        of.has_room_before(0, until).then(|| self.before(until))
    }

    fn before(&self, until: usize) -> Vec<u8> {
        let mut front = vec![0; until];
        self.fill(&mut front);
        front
    }

    /// It in memory of its own.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut whole = vec![0; self.end];
        self.fill(&mut whole);
        whole
    }
}

fn decoded(bytes: &[u8]) -> Option<Request> {
    let at = |from: usize, into: &mut [u8]| into.copy_from_slice(&bytes[from..from + into.len()]);
    Request::decode(bytes.len(), at).ok()
}

/// A request for a result that did not fit.
pub fn take(ticket: u64) -> Vec<u8> {
    let mut bytes = vec![0; request::HEAD_BYTES];
    bytes[0] = request::TAKE;
    bytes.extend(ticket.to_le_bytes());
    bytes
}
