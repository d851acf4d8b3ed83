//! Completions of a messenger: messages that have arrived, and buffers that are free again.

use super::{Messenger, MessengerOperation, MessengerPeer, at};
use crate::ofi::endpoint::{CompletionRead, FailedOperation, PostResult};
use crate::ofi::error::OfiError;
use crate::ofi::ffi::{FI_ADDR_NOTAVAIL, fi_addr_t, fi_cq_msg_entry};
use hotlease_wire::fabric::Envelope;
use std::ptr;

/// Largest number of bytes of one peer's messages that wait for earlier messages.
const EARLY_BYTES_MAX: usize = 4 << 20;
/// Largest number of one peer's messages that wait for earlier messages.
const EARLY_MAX: usize = 1 << 16;
/// Completions read by one call.
const BATCH: usize = 8;
/// Largest number of batches that one [`poll`](Messenger::poll) reads before it returns to the owner.
const BATCHES_MAX: usize = 8;

impl Messenger {
    /// Drives the operations that are under way, and passes each message that has arrived to `take`, with the peer's
    /// number. Returns whether there was any completion.
    #[inline]
    pub fn poll(&mut self, take: &mut dyn FnMut(u32, &[u8])) -> bool {
        let nothing = fi_cq_msg_entry {
            op_context: ptr::null_mut(),
            flags: 0,
            len: 0,
        };
        let mut entries = [nothing; BATCH];
        let mut sources = [FI_ADDR_NOTAVAIL; BATCH];
        let mut any = false;
        for _ in 0..BATCHES_MAX {
            match self.endpoint.completions(&mut entries, &mut sources) {
                CompletionRead::Read(count) => {
                    any |= count > 0;
                    for (entry, source) in entries.iter().zip(sources).take(count) {
                        self.handle_completion(entry, source, take);
                    }
                    if !self.unposted.is_empty()
                        && let Err(error) = self.post_receives()
                    {
                        self.fail_all(&error);
                        return true;
                    }
                    if count < BATCH {
                        break;
                    }
                }
                CompletionRead::Error(failure) => {
                    any = true;
                    self.handle_failure(&failure);
                }
                CompletionRead::Failed(result) => {
                    let error = self.endpoint.error("fi_cq_read", result);
                    self.fail_all(&error);
                    return true;
                }
            }
        }
        if !self.stalled.is_empty() {
            let stalled = std::mem::take(&mut self.stalled);
            self.stalled = stalled.into_iter().filter(|to| !self.post(*to)).collect();
        }
        any
    }

    #[inline]
    fn handle_completion(&mut self, entry: &fi_cq_msg_entry, source: fi_addr_t, take: &mut dyn FnMut(u32, &[u8])) {
        let Some(number) = self.operations.find(entry.op_context) else {
            return;
        };
        match self.operations.get(number) {
            Some(&MessengerOperation::Receive(buffer)) => {
                let bytes = entry.len.min(self.message_bytes);
                let start = at(&self.memory, buffer, self.pitch).as_ptr();
                // SAFETY: the message lies in its buffer, which the provider gave back; no other code writes the buffer
                // until it is posted again.
                let message = unsafe { std::slice::from_raw_parts(start, bytes) };
                self.handle_received(message, source, take);
                self.unposted.push(number);
            }
            Some(&MessengerOperation::Send { buffer, to }) => {
                self.operations.end(number);
                self.peers[to as usize].held -= 1;
                self.free.push(buffer);
            }
            None => {}
        }
    }

    /// Handles a message from any sender.
    #[inline]
    fn handle_received(&mut self, message: &[u8], source: fi_addr_t, take: &mut dyn FnMut(u32, &[u8])) {
        let Ok((envelope, content)) = Envelope::decode(message) else {
            self.refused += 1;
            return;
        };
        let number = envelope.number;
        let knows_sources = self.endpoint.knows_sources();
        let is_of = |peer: &&mut MessengerPeer| {
            let is_there = peer
                .far
                .as_ref()
                .is_some_and(|far| !knows_sources || far.address == source);
            is_there && peer.key == Some(envelope.key)
        };
        let Some(peer) = self.peers.get_mut(number as usize).filter(is_of) else {
            self.refused += 1;
            return;
        };
        if envelope.sequence != peer.next {
            self.keep_early(number, envelope.sequence, content);
            return;
        }
        peer.next = peer.next.wrapping_add(1);
        take(number, content);
        while let Some(content) = peer.early.remove(&peer.next) {
            peer.next = peer.next.wrapping_add(1);
            peer.early_bytes -= content.len();
            take(number, &content);
        }
    }

    /// Keeps a message that arrived before an earlier message of its peer.
    #[cold]
    fn keep_early(&mut self, number: u32, sequence: u32, content: &[u8]) {
        let peer = &mut self.peers[number as usize];
        peer.early_bytes += content.len();
        let is_ahead = sequence.wrapping_sub(peer.next) < u32::MAX / 2;
        let is_new = is_ahead && peer.early.insert(sequence, content.to_vec()).is_none();
        let why = match is_new {
            false => "a message of it came twice",
            true if peer.early_bytes > EARLY_BYTES_MAX || peer.early.len() > EARLY_MAX => "a message of it is missing",
            true => return,
        };
        self.fail(number, OfiError::BadEnd { why });
    }

    #[cold]
    fn handle_failure(&mut self, failure: &FailedOperation) {
        // An injected message has no context, so its peer is unknown. A caller that waits for the peer learns of the
        // failure in another way.
        let Some(number) = self.operations.find(failure.context) else {
            return;
        };
        match self.operations.get(number) {
            // The message was too long, or its connection ended in the middle of it. The next message shows that a
            // message is missing.
            Some(MessengerOperation::Receive(_)) => self.unposted.push(number),
            Some(&MessengerOperation::Send { buffer, to }) => {
                self.operations.end(number);
                self.peers[to as usize].held -= 1;
                self.free.push(buffer);
                let error = OfiError::LinkBroken {
                    what: "send",
                    code: failure.code,
                    why: self.endpoint.text(failure.code),
                };
                self.fail(to, error);
            }
            None => {}
        }
        // If the provider has no room for a receive, a later poll posts it.
        if let Err(error) = self.post_receives() {
            self.fail_all(&error);
        }
    }

    pub(super) fn post_receives(&mut self) -> Result<(), OfiError> {
        while let Some(number) = self.unposted.pop() {
            let Some(&MessengerOperation::Receive(buffer)) = self.operations.get(number) else {
                continue;
            };
            let start = at(&self.memory, buffer, self.pitch).as_ptr();
            let context = self.operations.context(number);
            // SAFETY: only this operation uses the buffer, and buffer and context live until the endpoint is closed.
            let posted = unsafe {
                self.endpoint
                    .receive(start, self.message_bytes, self.descriptor, context)
            };
            match posted {
                PostResult::Yes => {}
                PostResult::Again => {
                    self.unposted.push(number);
                    break;
                }
                PostResult::Failed(result) => {
                    self.unposted.push(number);
                    return Err(self.endpoint.error("fi_recv", result));
                }
            }
        }
        Ok(())
    }
}
