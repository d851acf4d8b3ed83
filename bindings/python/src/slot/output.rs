//! Replies, and results that did not fit into the output.

use crate::pickled::PickledBody;
use crate::slot::shelf;
use crate::task_output;
use hotlease_wire::limits::RING_DEPTH_MAX;
use hotlease_wire::task::left_results::LEFT_BYTES_MIN;
use hotlease_wire::task::{TaskReply, reply};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, SystemTime};

/// Limit of the kept results: a client may have filled a ring before it sees the first kept result.
const KEPT_MAX: usize = RING_DEPTH_MAX as usize;
/// Limit of the bytes of all kept results together; the youngest result may be larger than the limit.
const KEPT_BYTES_MAX: usize = 1 << 30;

/// Destination of a reply.
pub struct ReplyDestination<'a> {
    /// Output memory of the invocation.
    pub place: &'a mut [u8],
    /// Bytes of the whole reply, even if they do not fit.
    pub produced: usize,
    /// Whether a large result may stay with this worker.
    pub stays: bool,
}

impl ReplyDestination<'_> {
    /// Writes a reply of a few parts.
    pub fn write(&mut self, kept: &mut KeptResults, head: &[u8], body: &[&[u8]]) {
        let total = head.len() + body.iter().map(|part| part.len()).sum::<usize>();
        if total > self.place.len() {
            let whole = [&[head], body].concat().concat();
            return self.keep(kept, whole);
        }
        let mut at = 0;
        for part in std::iter::once(&head).chain(body) {
            self.place[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        self.produced = total;
    }

    /// Writes a pickled result with its buffers. Returns `false` if it is too large, or has too many buffers.
    pub fn write_pickle(&mut self, kept: &mut KeptResults, pickle: &[u8], buffers: &[&[u8]]) -> bool {
        let lengths: Vec<usize> = buffers.iter().map(|buffer| buffer.len()).collect();
        let Some(body) = PickledBody::reply(pickle, &lengths) else {
            return false;
        };
        let fill = |place: &mut [u8]| {
            let Ok(()) = body.fill(place, |number, into| -> Result<(), Infallible> {
                into.copy_from_slice(buffers[number]);
                Ok(())
            });
        };
        let layout = &body.layout;
        let stays = self.stays && layout.end >= LEFT_BYTES_MIN;
        match self.place.get_mut(..layout.end).filter(|_| !stays) {
            Some(place) => {
                fill(place);
                self.produced = layout.end;
            }
            None => {
                let mut whole = vec![0; layout.end];
                fill(&mut whole);
                match stays {
                    true => self.leave_on_shelf(kept, whole),
                    false => self.keep(kept, whole),
                }
            }
        }
        true
    }

    /// Leaves a result on the shelf, if other workers can reach it.
    fn leave_on_shelf(&mut self, kept: &mut KeptResults, whole: Vec<u8>) {
        match shelf::leave(kept.next_ticket(), whole) {
            Ok(left) => self.write(kept, &left.encode(), &[]),
            Err(whole) if whole.len() <= self.place.len() => self.write(kept, &whole, &[]),
            Err(whole) => self.keep(kept, whole),
        }
    }

    /// Writes a reply that is whole, or a refusal if there is no room for it. Returns whether there was room.
    fn copy(&mut self, whole: &[u8]) -> bool {
        let Some(place) = self.place.get_mut(..whole.len()) else {
            self.refuse(&format!("the result has {} bytes, and does not fit", whole.len()));
            return false;
        };
        place.copy_from_slice(whole);
        self.produced = whole.len();
        true
    }

    /// Writes why a result of another task could not be fetched.
    pub fn write_unfetched(&mut self, why: &str) {
        self.say(reply::NOT_HAD, why);
    }

    /// Writes a pickled result whose only buffer stays in the request, from offset `at` on. Returns `false` if there is
    /// no room for the reply and `following` more bytes.
    pub fn write_in_request(&mut self, pickle: &[u8], at: usize, bytes: usize, following: usize) -> bool {
        let mut head = [0; reply::HEAD_BYTES + reply::IN_REQUEST_BYTES];
        head[0] = reply::IN_REQUEST;
        head[reply::HEAD_BYTES..][..8].copy_from_slice(&(at as u64).to_le_bytes());
        head[reply::HEAD_BYTES + 8..].copy_from_slice(&(bytes as u64).to_le_bytes());
        // Such a reply cannot be kept for later, because the memory will then contain another request.
        let fits = head.len() + pickle.len() + following <= self.place.len();
        if fits {
            self.write(&mut KeptResults::default(), &head, &[pickle]);
        }
        fits
    }

    /// Completes a pickled result with one buffer, whose bytes are already in place, at `start`.
    pub fn end_in_place(&mut self, pickle: &[u8], start: usize, bytes: usize) {
        // `head` does not return `None`, because one buffer is within the limit.
        let head = TaskReply::head(reply::PICKLED, 0, pickle.len(), &[bytes]).unwrap_or_default();
        let (before, behind) = (head.len(), head.len() + pickle.len());
        self.place[..before].copy_from_slice(&head);
        self.place[before..behind].copy_from_slice(pickle);
        // Earlier content of the memory must not reach the client.
        self.place[behind..start].fill(0);
        self.produced = start + bytes;
    }

    /// Writes a refusal, with the reason why the request cannot be served.
    pub fn refuse(&mut self, why: &str) {
        self.say(reply::REFUSED, why);
    }

    fn say(&mut self, kind: u8, why: &str) {
        let mut head = [0; reply::HEAD_BYTES];
        head[0] = kind;
        let room = self.place.len().saturating_sub(head.len());
        let mut cut = why.len().min(room);
        while !why.is_char_boundary(cut) {
            cut -= 1;
        }
        self.write(&mut KeptResults::default(), &head, &[&why.as_bytes()[..cut]]);
    }

    /// Writes the running time of the function into the last reply.
    pub fn put_time(&mut self, kept: &mut KeptResults, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        if self.produced > self.place.len() {
            return;
        }
        match (self.place.first(), kept.results.back_mut()) {
            (Some(&reply::KEPT), Some((_, whole))) => reply::put_time(whole, ns),
            _ => reply::put_time(self.place, ns),
        }
    }

    /// Appends the output of the task to the last reply; if they do not fit together, both are kept.
    #[cold]
    pub fn append(&mut self, kept: &mut KeptResults, printed: &[u8]) {
        let end = self.produced + printed.len();
        if self.produced > self.place.len() {
            return;
        }
        match (self.place.first(), kept.results.back_mut()) {
            (Some(&reply::KEPT), Some((_, whole))) => {
                whole.extend_from_slice(printed);
                whole[0] |= task_output::FLAG;
                kept.bytes += printed.len();
                let bytes = (whole.len() as u64).to_le_bytes();
                self.place[reply::HEAD_BYTES + 8..self.produced].copy_from_slice(&bytes);
            }
            _ if end <= self.place.len() => {
                self.place[self.produced..end].copy_from_slice(printed);
                self.place[0] |= task_output::FLAG;
                self.produced = end;
            }
            // This reply cannot be kept, so output that does not fit is dropped. The reply was written only after a
            // check that the output until then fits as well.
            (Some(&reply::IN_REQUEST), _) => {}
            _ => {
                let mut whole = [&self.place[..self.produced], printed].concat();
                whole[0] |= task_output::FLAG;
                self.keep(kept, whole);
            }
        }
    }

    fn keep(&mut self, kept: &mut KeptResults, whole: Vec<u8>) {
        let mut told = [0; reply::HEAD_BYTES + 16];
        told[0] = reply::KEPT;
        told[reply::HEAD_BYTES + 8..].copy_from_slice(&(whole.len() as u64).to_le_bytes());
        self.produced = told.len();
        if let Some(place) = self.place.get_mut(..told.len()) {
            let ticket = kept.put(whole);
            told[reply::HEAD_BYTES..reply::HEAD_BYTES + 8].copy_from_slice(&ticket.to_le_bytes());
            place.copy_from_slice(&told);
        }
    }
}

/// Results that did not fit, until the client fetches them.
#[derive(Default)]
pub struct KeptResults {
    results: VecDeque<(u64, Vec<u8>)>,
    bytes: usize,
    tickets: u64,
}

impl KeptResults {
    /// Whether no kept result is left.
    pub fn is_empty(&self) -> bool {
        self.results.is_empty()
    }

    /// Next ticket, unique in this process.
    fn next_ticket(&mut self) -> u64 {
        if self.tickets == 0 {
            self.tickets = first_ticket();
        }
        self.tickets = self.tickets.wrapping_add(1);
        self.tickets
    }

    fn put(&mut self, whole: Vec<u8>) -> u64 {
        self.next_ticket();
        self.bytes += whole.len();
        self.results.push_back((self.tickets, whole));
        while self.results.len() > KEPT_MAX || (self.bytes > KEPT_BYTES_MAX && self.results.len() > 1) {
            if let Some((_, oldest)) = self.results.pop_front() {
                self.bytes -= oldest.len();
            }
        }
        self.tickets
    }

    /// Writes the result of a ticket, and drops the result. A result that does not fit stays.
    pub fn take(&mut self, ticket: u64, output: &mut ReplyDestination<'_>) {
        if let Some(standing) = shelf::look(ticket) {
            if output.copy(&standing.whole) {
                drop(shelf::take(ticket));
            }
            return;
        }
        let Some(at) = self.results.iter().position(|(theirs, _)| *theirs == ticket) else {
            return output.refuse("the result is not kept any more: too many others were, after it");
        };
        let whole = &self.results[at].1;
        if output.copy(whole) {
            self.bytes -= whole.len();
            self.results.remove(at);
        }
    }
}

/// First ticket of a worker. It is random, so that a successor of the worker starts with another number. It depends on
/// the process id and the time, because workers may be forks of one process, with the same hash seeds, and may have the
/// same process id in separate namespaces.
fn first_ticket() -> u64 {
    RandomState::new().hash_one((std::process::id(), SystemTime::now()))
}
