//! Sending of a messenger.

use super::{Messenger, MessengerOperation, QueuedMessage, SENDS_PER_PEER_MAX, at};
use crate::ofi::endpoint::PostResult;
use hotlease_wire::fabric::Envelope;

impl Messenger {
    /// Sends a message, if there is room. `write` gets a buffer of the greatest possible length, with arbitrary
    /// content, and returns how many bytes it has written. Returns `false` if there is no room; a [`poll`](Self::poll)
    /// may make room.
    #[inline]
    pub fn send(&mut self, to: u32, write: impl FnOnce(&mut [u8]) -> usize) -> bool {
        let Some(peer) = self.peers.get_mut(to as usize) else {
            return false;
        };
        let Some(far) = peer
            .far
            .as_mut()
            .filter(|_| !peer.has_failed && peer.held < SENDS_PER_PEER_MAX)
        else {
            return false;
        };
        let Some(buffer) = self.free.pop() else {
            return false;
        };
        let start = at(&self.memory, buffer, self.pitch).as_ptr();
        // SAFETY: a send buffer, of at least this many bytes, that no other code uses until it is posted.
        let message = unsafe { std::slice::from_raw_parts_mut(start, far.message_bytes) };
        let (head, content) = message.split_at_mut(Envelope::BYTES);
        let bytes = Envelope::BYTES + write(content).min(content.len());
        let envelope = Envelope {
            key: far.key,
            number: far.number,
            sequence: far.sequence,
        };
        head.copy_from_slice(&envelope.encode());
        far.sequence = far.sequence.wrapping_add(1);
        peer.held += 1;
        peer.ready.push_back(QueuedMessage { buffer, bytes });
        if peer.ready.len() == 1 && !self.post(to) {
            self.stalled.push(to);
        }
        true
    }

    /// Posts the messages that are ready for a peer. Returns `false` if the provider has no room for all of them.
    pub(super) fn post(&mut self, to: u32) -> bool {
        let peer = &mut self.peers[to as usize];
        let Some(far) = &peer.far else { return true };
        while let Some(&QueuedMessage { buffer, bytes }) = peer.ready.front() {
            let start = at(&self.memory, buffer, self.pitch).as_ptr();
            let is_injected = bytes <= self.endpoint.inject_bytes();
            let posted = if is_injected {
                // SAFETY: the message was written by `send`, and no code writes it during the call.
                let message = unsafe { std::slice::from_raw_parts(start, bytes) };
                self.endpoint.inject(message, far.address)
            } else {
                let begun = self.operations.begin(MessengerOperation::Send { buffer, to }, None);
                let Some((number, context)) = begun else {
                    return false;
                };
                // SAFETY: only this operation uses the buffer until its completion, and buffer and context live until
                // the endpoint is closed.
                let posted = unsafe { self.endpoint.send(start, bytes, self.descriptor, far.address, context) };
                if posted != PostResult::Yes {
                    self.operations.end(number);
                }
                posted
            };
            match posted {
                PostResult::Yes => {
                    peer.ready.pop_front();
                    if is_injected {
                        peer.held -= 1;
                        self.free.push(buffer);
                    }
                }
                PostResult::Again => return false,
                PostResult::Failed(result) => {
                    let error = self.endpoint.error("fi_send", result);
                    self.fail(to, error);
                    return true;
                }
            }
        }
        true
    }
}
