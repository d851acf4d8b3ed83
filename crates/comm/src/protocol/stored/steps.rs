//! Transfers of collectives through a store, as objects.

use crate::arena::Key;
use crate::error::Activity;
use crate::link::ObjectName;
use crate::protocol::{Owner, Protocol};
use hotlease_collectives::Step;
use std::sync::Arc;

/// Mark in the keys of objects that contain cards (checked mode). Schedules number their keys from 0.
const CHECKING: u32 = 1 << 31;

impl Protocol {
    /// Begins a transfer through a store.
    pub(in crate::protocol) fn begin_stored(&mut self, key: Key, step: &Step) {
        let me = self.me;
        let Some(running) = self.collectives.get_mut(key) else {
            return;
        };
        let (context, collective) = (running.context, running.number);
        // Both schedules of a checked collective may publish under the same key.
        let by = if running.is_checking() { CHECKING } else { 0 };
        let mut next = |is_sent, member| {
            let count = running.counts.entry((is_sent, member)).or_default();
            *count += 1;
            let (from, to) = if is_sent { (me, member) } else { (member, me) };
            let number = *count - 1;
            ObjectName::Step {
                context,
                collective,
                from,
                to,
                number,
            }
        };
        match *step {
            Step::Send { to, from } => {
                let to = running.members[to as usize];
                let name = next(true, to);
                let body = running.piece(from);
                let during = Activity::Collective { number: collective };
                match self.departure_in(context, to, during) {
                    Some(error) => self.complete(Owner::Collective(key), Err(error)),
                    None => self.publish(name, body, 1, Arc::from([to]), key),
                }
            }
            Step::Receive { from, into } => {
                let from = running.members[from as usize];
                let name = next(false, from);
                let into = running.piece(into);
                self.fetch(from, name, into, key);
            }
            Step::Publish {
                key: name,
                from,
                readers,
            } => {
                let name = ObjectName::Published {
                    context,
                    collective,
                    from: me,
                    key: name | by,
                };
                let (body, members) = (running.piece(from), Arc::clone(&running.members));
                self.publish(name, body, readers, members, key);
            }
            Step::Fetch { of, key: name, into } => {
                let from = running.members[of as usize];
                let name = ObjectName::Published {
                    context,
                    collective,
                    from,
                    key: name | by,
                };
                let into = running.piece(into);
                self.fetch(from, name, into, key);
            }
            // Such steps were refused when the collective began.
            Step::Copy { .. } | Step::Reduce { .. } => running.outstanding -= 1,
        }
    }
}
