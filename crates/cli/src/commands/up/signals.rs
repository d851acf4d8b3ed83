//! The signals that stop a daemon, and how an agent obeys them.

use anyhow::Context;
use hotlease_agent::Agent;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// From its making on, these signals no longer kill the process.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
    remove: Signal,
}

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    /// SIGINT, SIGHUP: stop now.
    Stop,
    /// SIGTERM: stop when the leases are over, and at the latest some time later.
    Drain,
    /// SIGUSR1: the node is wanted back at once.
    Remove,
}

impl Signals {
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot handle signals");
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: listen(SignalKind::hangup())?,
            remove: listen(SignalKind::user_defined1())?,
        })
    }

    /// The next one of them.
    pub(crate) async fn next(&mut self) -> Told {
        tokio::select! {
            _ = self.interrupt.recv() => Told::Stop,
            _ = self.terminate.recv() => Told::Drain,
            _ = self.hang_up.recv() => Told::Stop,
            _ = self.remove.recv() => Told::Remove,
        }
    }

    /// Lets an agent do what it was told until it may be shut down: nothing of its node is leased then, unless it
    /// is to stop at once.
    pub(crate) async fn obey(&mut self, told: Told, agent: &Agent, drain_within: Duration) {
        let told = match told {
            Told::Drain => tokio::select! {
                () = agent.give_back(drain_within) => return,
                // Told again: no more patience.
                told = self.next() => match told {
                    Told::Drain => Told::Stop,
                    told => told,
                },
            },
            told => told,
        };
        if told == Told::Remove {
            agent.give_back(Duration::ZERO).await;
        }
    }

    /// The next signal to stop: a manager has nothing to be removed, and of an agent that stops already everything
    /// is.
    pub(crate) async fn impatience(&mut self) {
        while self.next().await == Told::Remove {}
    }
}
