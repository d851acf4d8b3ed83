//! Signals that stop a daemon, and the reaction of an agent to them.

use anyhow::Context;
use hotlease_agent::Agent;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals that stop a daemon. Once this exists, they no longer kill the process.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
    remove: Signal,
}

/// Request of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShutdownKind {
    /// SIGINT, SIGHUP: stop now.
    Stop,
    /// SIGTERM: stop when the leases are over, at the latest after the drain time.
    Drain,
    /// SIGUSR1: give the node back at once.
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

    /// Request of the next signal.
    pub(crate) async fn next(&mut self) -> ShutdownKind {
        tokio::select! {
            _ = self.interrupt.recv() => ShutdownKind::Stop,
            _ = self.terminate.recv() => ShutdownKind::Drain,
            _ = self.hang_up.recv() => ShutdownKind::Stop,
            _ = self.remove.recv() => ShutdownKind::Remove,
        }
    }

    /// Lets an agent obey a request until the agent may be shut down. By then no resources of its node are leased,
    /// unless the request was to stop at once.
    pub(crate) async fn obey(&mut self, told: ShutdownKind, agent: &Agent, drain_within: Duration) {
        let told = match told {
            ShutdownKind::Drain => tokio::select! {
                () = agent.give_back(drain_within) => return,
                // A second request during the drain ends the wait.
                told = self.next() => match told {
                    ShutdownKind::Drain => ShutdownKind::Stop,
                    told => told,
                },
            },
            told => told,
        };
        if told == ShutdownKind::Remove {
            agent.give_back(Duration::ZERO).await;
        }
    }

    /// Waits for the next signal to stop. Ignores SIGUSR1: a manager has no node to give back, and a stopping agent
    /// gives back everything anyway.
    pub(crate) async fn wait_for_stop(&mut self) {
        while self.next().await == ShutdownKind::Remove {}
    }
}
