//! Handles received messages, and sends the messages that are not frames.

use super::endpoint::PostResult;
use super::error::OfiError;
use super::ffi::fi_addr_t;
use super::operation::Operation;
use super::peer_state::PeerState;
use super::port_state::{CONTROL_BYTES, OpenChannel, PortState};
use hotlease_wire::fabric::{MessageKind, Prefix};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Reason why a message was dropped.
enum FrameError {
    UnknownChannel,
    WrongKey,
    WrongSource,
    BadEntry,
    BadLength,
}

impl PortState {
    /// Handles a message from any sender.
    #[inline]
    pub(super) fn dispatch(&mut self, message: &[u8], source: fi_addr_t) {
        let Ok(prefix) = Prefix::decode(message) else {
            self.counters.malformed += 1;
            return;
        };
        match prefix.kind {
            MessageKind::Frame => match self.deliver_frame(&prefix, message, source) {
                Ok(()) => self.counters.delivered += 1,
                Err(why) => self.count_refused(why),
            },
            MessageKind::Probe | MessageKind::ProbeAnswer => self.handle_probe(&prefix, source),
            MessageKind::Goodbye => match self.channel(&prefix, source) {
                Ok(channel) => {
                    if let Some(ring) = &channel.ring {
                        ring.closed.store(true, Ordering::Release);
                    }
                }
                Err(why) => self.count_refused(why),
            },
        }
    }

    /// Returns the open channel that a message names, if key and source are right; otherwise the reason, to be counted.
    #[inline]
    fn channel(&self, prefix: &Prefix, source: fi_addr_t) -> Result<&OpenChannel, FrameError> {
        let index = (prefix.channel as usize) & (super::CHANNELS_MAX - 1);
        let found = self.channels.get(index).and_then(Option::as_ref);
        let channel = found.filter(|found| found.id == prefix.channel);
        let channel = channel.ok_or(FrameError::UnknownChannel)?;
        if channel.key != prefix.key {
            return Err(FrameError::WrongKey);
        }
        if let Some(ring) = &channel.ring
            && self.endpoint.knows_sources()
            && source != ring.link.address
        {
            return Err(FrameError::WrongSource);
        }
        Ok(channel)
    }

    #[cold]
    fn count_refused(&mut self, why: FrameError) {
        let counter = match why {
            FrameError::UnknownChannel => &mut self.counters.unknown_channel,
            FrameError::WrongKey => &mut self.counters.wrong_key,
            FrameError::WrongSource => &mut self.counters.wrong_source,
            FrameError::BadEntry => &mut self.counters.bad_entry,
            FrameError::BadLength => &mut self.counters.bad_length,
        };
        *counter += 1;
    }

    #[inline]
    fn deliver_frame(&self, prefix: &Prefix, message: &[u8], source: fi_addr_t) -> Result<(), FrameError> {
        let channel = self.channel(prefix, source)?;
        if !prefix.fits_ring(channel.shape) {
            return Err(FrameError::BadEntry);
        }
        let (words, payload) = prefix.frame(message).ok_or(FrameError::BadLength)?;
        // SAFETY: the payload is as long as the message's prefix says, which is at most an entry; entry and ring were
        // checked. By the channel's protocol, the entry is the sender's until the line is published; a hostile sender
        // overwrites only its own requests or replies.
        unsafe {
            let to = channel.near.payload(prefix.entry).as_ptr();
            std::ptr::copy_nonoverlapping(payload.as_ptr(), to, payload.len());
        }
        channel.near.line(prefix.entry).publish(&words);
        Ok(())
    }

    #[cold]
    fn handle_probe(&mut self, prefix: &Prefix, source: fi_addr_t) {
        let Some(link) = self.links.get(&prefix.key).cloned() else {
            self.counters.wrong_key += 1;
            return;
        };
        if self.endpoint.knows_sources() && source != link.address {
            self.counters.wrong_source += 1;
            return;
        }
        if prefix.kind == MessageKind::ProbeAnswer {
            link.answered.store(prefix.channel, Ordering::Release);
        } else {
            // If there is no room for the answer, none is sent: the prober asks again.
            self.send_control(&link, Prefix::bare(MessageKind::ProbeAnswer, prefix.channel, link.key));
        }
    }

    /// Sends a control message if there is room; returns whether it is under way.
    pub(super) fn send_control(&mut self, link: &Arc<PeerState>, message: Prefix) -> bool {
        let Some(buffer) = self.buffers.free_control.pop() else {
            return false;
        };
        let begun = self.begin(
            Operation::Control {
                buffer,
                link: link.clone(),
            },
            self.buffers.region,
        );
        let Some((number, context)) = begun else {
            self.buffers.free_control.push(buffer);
            return false;
        };
        let receives = self.buffers.receives as usize * self.buffers.pitch;
        // SAFETY: one of the control buffers, which lie behind the receive buffers. It was free, so we may write it,
        // and then the provider may read it until the operation ends.
        let posted = unsafe {
            let start = self
                .buffers
                .memory
                .start()
                .add(receives + buffer as usize * CONTROL_BYTES);
            std::ptr::copy_nonoverlapping(message.encode().as_ptr(), start.as_ptr(), Prefix::BYTES);
            let (start, descriptor) = (start.as_ptr(), self.buffers.descriptor);
            self.endpoint
                .send(start, Prefix::BYTES, descriptor, link.address, context)
        };
        if posted == PostResult::Yes {
            return true;
        }
        let ended = self.end(number);
        let error = match posted {
            PostResult::Failed(result) => Some(OfiError::LinkBroken {
                what: "send",
                code: result.unsigned_abs() as i32,
                why: self.endpoint.text(result as i32),
            }),
            _ => None,
        };
        self.settle(ended, error);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ofi::counters::Counters;
    use crate::ofi::providers::find_provider;
    use crate::ofi::{Libfabric, Port};
    use crate::shm::NearRing;
    use hotlease_wire::connection::RingShape;
    use std::net::{IpAddr, Ipv4Addr};

    const ENTRY_BYTES: u32 = 256;
    const LINE: usize = 64;

    /// Opens a port with a channel, and makes the prefix of a frame for it. Returns `None` if there is no libfabric.
    fn channel() -> Option<(Arc<Port>, NearRing, impl Drop, Prefix)> {
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let provider = Libfabric::load().and_then(|library| find_provider(&library, "tcp;ofi_rxm", Some(local)));
        let provider = provider.inspect_err(|error| eprintln!("skipped: {error}")).ok()?;
        let port = Port::open(&provider).unwrap();
        let shape = RingShape {
            depth: 4,
            entry_bytes: ENTRY_BYTES,
        };
        let near = NearRing::create("test", shape).unwrap();
        let end = port.open_channel(&near).unwrap();
        let prefix = Prefix {
            kind: MessageKind::Frame,
            payload_written: false,
            channel: end.end().channel,
            key: end.end().key,
            entry: 2,
            length: 0,
        };
        Some((port, near, end, prefix))
    }

    /// Counters of a port after it received a prefix with `behind` bytes behind it.
    fn counted(port: &Port, prefix: &Prefix, behind: usize) -> Counters {
        let mut message = prefix.encode().to_vec();
        message.resize(Prefix::BYTES + behind, 1);
        let mut state = port.lock();
        state.counters = Counters::default();
        state.dispatch(&message, 0);
        state.counters
    }

    #[test]
    fn frames_of_a_wrong_length_are_counted_and_change_nothing() {
        let Some((port, near, _end, prefix)) = channel() else {
            return;
        };
        let refused = Counters {
            bad_length: 1,
            ..Counters::default()
        };
        let payload = ENTRY_BYTES as usize;
        for (length, payload_written, behind) in [
            // No line, a part of a line, and more than one line.
            (0, false, 0),
            (0, false, LINE / 2 - 1),
            (0, false, LINE + 8),
            // A payload that is missing, cut, or followed by more.
            (ENTRY_BYTES, false, LINE / 2),
            (ENTRY_BYTES, false, LINE / 2 + payload - 1),
            (ENTRY_BYTES, false, LINE + payload + 1),
            // A payload that the prefix announces as written ahead, but that is in the message all the same.
            (ENTRY_BYTES, true, LINE + payload),
        ] {
            let prefix = Prefix {
                length,
                payload_written,
                ..prefix
            };
            let seen = counted(&port, &prefix, behind);
            assert_eq!(
                seen, refused,
                "{behind} bytes behind a prefix of length {length}, written ahead: {payload_written}"
            );
        }
        // SAFETY: the first byte of an entry's payload.
        let first = unsafe { near.payload(prefix.entry).as_ptr().read() };
        assert_eq!(first, 0, "a refused payload was written into the ring");

        let whole = counted(&port, &prefix, LINE);
        let delivered = Counters {
            delivered: 1,
            ..Counters::default()
        };
        assert_eq!(whole, delivered, "a frame of the right length");
    }

    #[test]
    fn each_other_fault_has_a_count_of_its_own() {
        let Some((port, _near, _end, prefix)) = channel() else {
            return;
        };
        let none = Counters::default();
        let other = |change: fn(&mut Prefix)| {
            let mut changed = prefix;
            change(&mut changed);
            counted(&port, &changed, LINE)
        };
        assert_eq!(other(|prefix| prefix.key ^= 1), Counters { wrong_key: 1, ..none });
        assert_eq!(
            other(|prefix| prefix.channel ^= 1 << 31),
            Counters {
                unknown_channel: 1,
                ..none
            }
        );
        assert_eq!(other(|prefix| prefix.entry = 4), Counters { bad_entry: 1, ..none });
        assert_eq!(
            other(|prefix| prefix.length = ENTRY_BYTES + 1),
            Counters { bad_entry: 1, ..none }
        );
        let mut state = port.lock();
        state.counters = none;
        state.dispatch(&prefix.encode()[..Prefix::BYTES - 1], 0);
        assert_eq!(state.counters, Counters { malformed: 1, ..none });
    }
}
