//! Jobs: work that takes time. The driving thread does it without the engine's lock, so that this member still takes in
//! messages and sends signs of life.

use super::collectives::LocalWork;
use super::{MessageStatus, Owner, PostedReceive, Protocol};
use crate::arena::Key;
use crate::error::Error;
use crate::matching::MessageEnvelope;
use crate::memory::Piece;
use hotlease_wire::comm::frame::DATA_BYTES_MAX;

/// Work for the driving thread.
pub(crate) enum Job {
    /// Local work of a collective.
    Local(LocalWork),
    /// Copy of a long message that this member has sent to itself.
    Copy(OwnCopy),
}

/// Message that this member has sent to itself, with the receive that takes it.
pub(crate) struct OwnCopy {
    body: Piece,
    sender: Owner,
    posted: PostedReceive,
    status: MessageStatus,
}

/// Job that was done, with its result.
pub(crate) enum DoneJob {
    Local((Key, Result<(), String>)),
    /// The result is `None` if the memory of the sender or of the receiver was taken back.
    Copy(OwnCopy, Option<()>),
}

impl Job {
    /// Does the work.
    pub(crate) fn run(self) -> DoneJob {
        match self {
            Self::Local(work) => DoneJob::Local(work.run()),
            Self::Copy(copy) => {
                let copied = copy.run();
                DoneJob::Copy(copy, copied)
            }
        }
    }
}

impl OwnCopy {
    fn run(&self) -> Option<()> {
        self.body.copy_to(self.posted.memory())
    }
}

impl Protocol {
    /// Takes the next job.
    pub(crate) fn next_job(&mut self) -> Option<Job> {
        self.jobs.pop_front()
    }

    /// Whether there is a job.
    pub(crate) fn has_job(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Continues the operation that waited for this job.
    pub(crate) fn end_job(&mut self, done: DoneJob) {
        match done {
            DoneJob::Local(done) => self.end_local_work(done),
            DoneJob::Copy(copy, copied) => self.end_own(copy, copied),
        }
    }

    /// Delivers a message that this member has sent to itself to a matching receive. Copies a short message now, and a
    /// long one in a job.
    pub(super) fn deliver_own(
        &mut self,
        envelope: MessageEnvelope,
        (body, sender): (Piece, Owner),
        posted: PostedReceive,
    ) {
        let status = MessageStatus {
            source: envelope.source,
            tag: envelope.tag,
            bytes: body.len() as u64,
        };
        let copy = OwnCopy {
            body,
            sender,
            posted,
            status,
        };
        if copy.status.bytes > DATA_BYTES_MAX {
            self.news += 1;
            return self.jobs.push_back(Job::Copy(copy));
        }
        let copied = copy.run();
        self.end_own(copy, copied);
    }

    fn end_own(&mut self, copy: OwnCopy, copied: Option<()>) {
        let (_, receiver, during) = copy.posted.parts();
        let result = copied.map(|()| copy.status).ok_or(Error::MemoryReclaimed { during });
        self.complete(copy.sender, result.clone());
        self.complete(receiver, result);
    }
}
