//! Requests of tasks: the payload, which is kept to send a task again, and the assembly of a request.

use super::target::Target;
use crate::client::memory::Extent;
use hotlease_client::Error;
use hotlease_wire::task::{ALIGNED_FROM, ALIGNMENT, TaskLayout, TaskRequest, place_results, request};

/// A request without its function.
pub enum TaskPayload {
    /// Request in private memory: it fits a ring entry, or waits for shared memory.
    Own(Box<[u8]>),
    /// Request in shared memory.
    Shared(Box<Extent>),
}

impl TaskPayload {
    /// Bytes of the request.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(extent) => extent.bytes(),
        }
    }

    /// Copies a request that no task writes to.
    pub fn copy(&self) -> Self {
        match self {
            Self::Own(bytes) => Self::Own(bytes.clone()),
            Self::Shared(extent) => Self::Shared(extent.clone()),
        }
    }

    /// Asks for the running time of the function. Only for a request that has no other holder yet.
    pub fn ask_time(&mut self) {
        self.ask(request::TIMED);
    }

    /// Says that the client reads the result as untrusted. Only for a request that has no other holder yet.
    pub fn ask_guarded(&mut self) {
        self.ask(request::GUARDED);
    }

    /// Whether the client reads the result as untrusted.
    pub fn is_guarded(&self) -> bool {
        self.bytes()[1] & request::GUARDED != 0
    }

    fn ask(&mut self, flag: u8) {
        match self {
            Self::Own(bytes) => bytes[1] |= flag,
            Self::Shared(extent) => **extent = with_flag(extent, flag, true),
        }
    }
}

/// Sets or clears a flag of a request; writes nothing if the flag has that value already.
#[inline]
pub fn set_flag(bytes: &mut [u8], flag: u8, is_set: bool) {
    if (bytes[1] & flag != 0) != is_set {
        bytes[1] ^= flag;
    }
}

/// Sets or clears a flag of a request that no worker is reading, and returns the request.
pub fn with_flag(extent: &Extent, flag: u8, is_set: bool) -> Extent {
    // The request is long enough: it has a buffer or a result, which starts at this offset or later.
    let front = extent.bytes().first_chunk::<ALIGNMENT>().copied();
    let same = front.and_then(|mut front| {
        front[1] = front[1] & !flag | if is_set { flag } else { 0 };
        extent.put_before(ALIGNMENT, &front)
    });
    same.unwrap_or_else(|| extent.clone())
}

/// Assembly of a request, to which a function or results of other tasks are added.
pub struct Assembly<'a> {
    bytes: &'a [u8],
    without: TaskRequest,
    head: Vec<u8>,
    blob: &'a [u8],
    layout: TaskLayout,
    results: Vec<&'a [u8]>,
    places: Vec<(usize, usize)>,
    end: usize,
}

impl<'a> Assembly<'a> {
    /// Adds the function to a request. Returns `None` if the assembled request is larger than any memory.
    pub fn with_function(bytes: &'a [u8], target: &'a Target) -> Option<Self> {
        let without = decoded(bytes)?;
        let results = without.results.iter();
        let results = results.map(|&(start, length)| &bytes[start..][..length]);
        let results = results.collect();
        Self::new(bytes, without, target, &target.blob, results)
    }

    /// Adds results of other tasks to a request. Returns `None` if there are too many results, or they are larger than
    /// any memory.
    pub fn with_results(bytes: &'a [u8], target: &'a Target, results: Vec<&'a [u8]>) -> Option<Self> {
        Self::new(bytes, decoded(bytes)?, target, &[], results)
    }

    fn new(
        bytes: &'a [u8],
        without: TaskRequest,
        target: &Target,
        blob: &'a [u8],
        results: Vec<&'a [u8]>,
    ) -> Option<Self> {
        let arguments = &without.arguments;
        let lengths: Vec<usize> = arguments.buffers.iter().map(|(_, length)| *length).collect();
        let result_lengths: Vec<usize> = results.iter().map(|result| result.len()).collect();
        let (kind, writable, pickle_bytes) = (without.kind, without.writable, arguments.pickle_bytes);
        let mut head = TaskRequest::head(
            kind,
            writable,
            &target.key,
            blob.len(),
            pickle_bytes,
            &lengths,
            &result_lengths,
        )?;
        head[1] |= bytes[1] & (request::TIMED | request::GUARDED);
        let layout = TaskLayout::new(head.len().checked_add(blob.len())?, pickle_bytes, lengths)?;
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

    /// Bytes of the assembled request.
    pub fn len(&self) -> usize {
        self.end
    }

    /// The parts, each with its offset.
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

    /// Writes the request into `into`. If `into` is shorter, it must end where a part starts, and gets the parts before
    /// that place.
    pub fn fill(&self, into: &mut [u8]) {
        let (mut end, until) = (0, into.len());
        for (start, bytes) in self.parts().take_while(|(start, _)| *start < until) {
            // Earlier content of the memory must not reach the worker.
            into[end..start].fill(0);
            end = start + bytes.len();
            into[start..end].copy_from_slice(bytes);
        }
        into[end..].fill(0);
    }

    /// Returns how to assemble the request in place, in the memory of the old request (`of`): an offset, and the new
    /// bytes to put before it. All bytes from that offset on stay, because the distances between them do not change.
    /// Returns `None` if no bytes can stay, or there is no room.
    pub fn front(&self, of: &Extent) -> Option<(usize, Vec<u8>)> {
        let arguments = &self.without.arguments;
        let (from, until) = match (arguments.buffers.first(), self.without.results.first()) {
            (Some(&(from, _)), _) => (from, self.layout.buffers[0].0),
            (None, Some(&(from, length))) if length >= ALIGNED_FROM => (from, self.places[0].0),
            _ => return None,
        };
        of.has_room_before(from, until).then(|| (from, self.before(until)))
    }

    /// Returns the bytes to put before the only result of another task. Returns `None` if `of`, which has the result,
    /// has no room for them.
    pub fn before_result(&self, of: &Extent) -> Option<Vec<u8>> {
        let &[(until, _)] = &*self.places else { return None };
        of.has_room_before(0, until).then(|| self.before(until))
    }

    fn before(&self, until: usize) -> Vec<u8> {
        let mut front = vec![0; until];
        self.fill(&mut front);
        front
    }

    /// Returns the request as a vector.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut whole = vec![0; self.end];
        self.fill(&mut whole);
        whole
    }
}

fn decoded(bytes: &[u8]) -> Option<TaskRequest> {
    let at = |from: usize, into: &mut [u8]| into.copy_from_slice(&bytes[from..from + into.len()]);
    TaskRequest::decode(bytes.len(), at).ok()
}

/// Makes the request to fetch a result that its worker keeps.
pub fn fetch_request(ticket: u64) -> Vec<u8> {
    let mut bytes = vec![0; request::HEAD_BYTES];
    bytes[0] = request::TAKE;
    bytes.extend(ticket.to_le_bytes());
    bytes
}

pub fn too_large() -> Error {
    Error::InputTooLarge {
        size: u64::MAX,
        limit: u64::from(u32::MAX),
    }
}
