//! An agent's daemon: grants, and the sessions of clients that hold leases.

use super::{AgentNode, ProcessDied, tell};
use crate::message::{AgentMessage, ClientMessage, Grant, Session};
use crate::node::Node;
use crate::shared_state::SharedState;
use crate::truth::LeaseTruth;
use hotlease_lease::agent::{ATTACH_WITHIN, BookEvent, SessionId, WorkerState};
use hotlease_lease::manager::EndRequest;
use hotlease_lease::{LeaseRequest, LeaseSpec};
use hotlease_wire::ids::LeaseId;
use hotlease_wire::{EndReason, Rejection};
use rand::RngExt;
use std::time::Duration;

impl AgentNode {
    pub(super) fn grant(
        &mut self,
        wanted: LeaseRequest,
        site: &mut SharedState,
    ) -> Result<Result<Grant, Rejection>, ProcessDied> {
        let (number, id) = (self.number, LeaseId(site.random.random()));
        let (tenant, ttl, asked) = (wanted.tenant.clone(), wanted.ttl, wanted.spec);
        // Simulated workers have one slot each.
        let spec = LeaseSpec {
            workers: asked.all_slots(),
            slots_per_worker: 1,
            gpus: asked.gpus / asked.slots_per_worker,
            ..asked
        };
        let Some(process) = self.process.as_ref() else {
            return Err(ProcessDied);
        };
        let (boot, now) = (process.boot, process.clock.shows(site.now));
        let expires = now + ttl.min(ATTACH_WITHIN);
        let truth = LeaseTruth {
            functions: Default::default(),
            agent: number,
            boot,
            tenant: tenant.clone(),
            slots: spec.workers,
            granted: site.now,
            freed: None,
            expires,
            expires_truly: process.clock.true_time(expires),
            computed: Duration::ZERO,
            invocations: 0,
        };
        site.truth.leases.insert(id, truth);
        let grant = BookEvent::Grant {
            lease: id,
            request: LeaseRequest { spec, ..wanted }.into(),
        };
        if let Some(refusal) = self.step(grant, site)? {
            site.truth.leases.remove(&id);
            return Ok(Err(refusal));
        }
        let lease = self.process.as_ref().and_then(|process| process.book.lease(id));
        let Some(lease) = lease else {
            return Ok(Err(Rejection::UnknownLease));
        };
        let drained = self.process.as_ref().and_then(|process| process.drained);
        let serves = drained.is_none() && !site.truth.given_back.contains_key(&number);
        site.check_promise(self.node(), serves, || {
            format!("lease {id} is granted on a node that is given back")
        });
        Ok(Ok(Grant {
            agent: number,
            boot,
            lease: id,
            epoch: lease.epoch,
            ttl,
            cores: lease.cores(),
            tenant,
            until: lease.expires,
        }))
    }

    pub(super) fn end(
        &mut self,
        (from, run, call): (Node, u32, u64),
        release: EndRequest,
        site: &mut SharedState,
    ) -> Result<Result<(), Rejection>, ProcessDied> {
        let EndRequest { lease, reason, .. } = release;
        if let Some(process) = self.process() {
            process.ending.push((lease, from, run, call));
        }
        let refusal = self.step(BookEvent::End { lease, reason }, site)?;
        if let (Some(_), Some(process)) = (&refusal, self.process()) {
            process.ending.retain(|waits| *waits != (lease, from, run, call));
        }
        Ok(refusal.map_or(Ok(()), Err))
    }

    /// Handles a message of a client in its session.
    pub(super) fn handle_client_message(
        &mut self,
        session: Session,
        ask: ClientMessage,
        site: &mut SharedState,
    ) -> Result<(), ProcessDied> {
        let node = self.node();
        let Some(process) = self.process.as_mut() else {
            return Err(ProcessDied);
        };
        let bound = process.sessions.get(&session).copied();
        match (ask, bound) {
            (ClientMessage::Attach(grant), None) => self.attach(session, grant, site)?,
            (ClientMessage::Attach(_), Some(_)) => {}
            (ClientMessage::Close, Some((id, lease))) => {
                process.sessions.remove(&session);
                process.connecting.retain(|(of, ..)| *of != session);
                self.step(BookEvent::SessionClosed { session: id, lease }, site)?;
            }
            (ClientMessage::Close, None) => {}
            (_, None) => tell(site, node, session, AgentMessage::Closed),
            (ClientMessage::Renew, Some((_, lease))) => {
                let answer = match self.step_and_extend(BookEvent::Renew { lease }, lease, site)? {
                    Some(ttl) => AgentMessage::Renewed { ttl },
                    None => AgentMessage::NotRenewed,
                };
                tell(site, node, session, answer);
            }
            (ClientMessage::Connect(worker), Some((_, lease))) => {
                if self.step(BookEvent::Replace { lease, worker }, site)?.is_some() {
                    tell(site, node, session, AgentMessage::NotConnected { worker });
                } else if let Some(process) = self.process() {
                    process.connecting.push((session, lease, worker));
                    self.connect_waiting(site);
                }
            }
            (ClientMessage::Release, Some((_, lease))) => {
                let reason = EndReason::Released;
                // The event of the lease's end informs the client.
                self.step(BookEvent::End { lease, reason }, site)?;
            }
        }
        Ok(())
    }

    pub(super) fn attach(&mut self, session: Session, grant: Grant, site: &mut SharedState) -> Result<(), ProcessDied> {
        let node = self.node();
        let Some(process) = self.process.as_mut() else {
            return Err(ProcessDied);
        };
        // The real agent checks this when it opens the token.
        if grant.boot != process.boot {
            tell(site, node, session, AgentMessage::Closed);
            return Ok(());
        }
        process.last_session += 1;
        let id = SessionId(process.last_session);
        let event = BookEvent::Attach {
            session: id,
            lease: grant.lease,
            epoch: grant.epoch,
            tenant: grant.tenant,
            until: grant.until,
        };
        match self.step_and_extend(event, grant.lease, site)? {
            Some(ttl) => {
                if let Some(process) = self.process() {
                    process.sessions.insert(session, (id, grant.lease));
                }
                tell(site, node, session, AgentMessage::Attached { ttl });
            }
            None => tell(site, node, session, AgentMessage::Closed),
        }
        Ok(())
    }

    /// Makes a step that extends a lease's expiry, and checks that the lease had not expired.
    pub(super) fn step_and_extend(
        &mut self,
        event: BookEvent,
        lease: LeaseId,
        site: &mut SharedState,
    ) -> Result<Option<Duration>, ProcessDied> {
        let node = self.node();
        if self.step(event, site)?.is_some() {
            return Ok(None);
        }
        let Some(process) = self.process.as_ref() else {
            return Err(ProcessDied);
        };
        let Some(ttl) = process.book.lease(lease).map(|lease| lease.request.ttl) else {
            return Ok(None);
        };
        let now = process.clock.shows(site.now);
        let Some(truth) = site.truth.leases.get_mut(&lease) else {
            return Ok(None);
        };
        let before = std::mem::replace(&mut truth.expires, now + ttl);
        truth.expires_truly = process.clock.true_time(now + ttl);
        site.check_promise(node, now < before, || {
            format!("lease {lease} was renewed at {now:?}, after its expiry at {before:?}")
        });
        Ok(Some(ttl))
    }

    /// Answers clients whose workers have started, or are gone, by now.
    pub(super) fn connect_waiting(&mut self, site: &mut SharedState) {
        let node = self.node();
        let Some(process) = self.process.as_mut() else {
            return;
        };
        let waiting = std::mem::take(&mut process.connecting);
        for (session, id, index) in waiting {
            let lease = process.book.lease(id);
            let worker = lease.and_then(|lease| lease.workers.get(usize::from(index.0)));
            match worker {
                Some(worker) if worker.state == WorkerState::Serving => {
                    let epoch = worker.epoch;
                    tell(site, node, session, AgentMessage::Connected { worker: index, epoch });
                }
                Some(worker) if worker.state == WorkerState::Starting => {
                    process.connecting.push((session, id, index));
                }
                _ => tell(site, node, session, AgentMessage::NotConnected { worker: index }),
            }
        }
    }
}
