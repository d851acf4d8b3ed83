//! An agent's daemon: grants, and the sessions of clients that hold leases.

use super::{AgentNode, Died, tell};
use crate::message::{Ask, Grant, Session, Tell, Wanted};
use crate::node::Node;
use crate::site::Site;
use crate::truth::LeaseTruth;
use hotlease_lease::agent::{ATTACH_WITHIN, Event, GrantRequest, SessionId, Sharing, WorkerState};
use hotlease_lease::manager::Release;
use hotlease_wire::ids::LeaseId;
use hotlease_wire::{EndReason, Refusal};
use rand::RngExt;
use std::time::Duration;

impl AgentNode {
    pub(super) fn grant(&mut self, wanted: Wanted, site: &mut Site) -> Result<Result<Grant, Refusal>, Died> {
        let (number, id) = (self.number, LeaseId(site.random.random()));
        let Wanted {
            tenant,
            workers,
            cores,
            gpus,
            shared,
            ttl,
            ..
        } = wanted;
        let cores = workers * cores;
        let Some(process) = self.process.as_ref() else {
            return Err(Died);
        };
        let (boot, now) = (process.boot, process.clock.shows(site.now));
        let expires = now + ttl.min(ATTACH_WITHIN);
        let truth = LeaseTruth {
            functions: Default::default(),
            agent: number,
            boot,
            tenant: tenant.clone(),
            slots: cores,
            granted: site.now,
            freed: None,
            expires,
            expires_truly: process.clock.true_time(expires),
            computed: Duration::ZERO,
            invocations: 0,
        };
        site.truth.leases.insert(id, truth);
        let request = GrantRequest {
            id,
            tenant: tenant.clone(),
            label: String::new(),
            workers: cores,
            slots_per_worker: 1,
            memory_bytes: 0,
            gpus,
            sharing: if shared {
                Sharing::Shared
            } else {
                Sharing::Exclusive
            },
            ttl,
        };
        if let Some(refusal) = self.step(Event::Grant(request), site)? {
            site.truth.leases.remove(&id);
            return Ok(Err(refusal));
        }
        let lease = self.process.as_ref().and_then(|process| process.book.lease(id));
        let Some(lease) = lease else {
            return Ok(Err(Refusal::UnknownLease));
        };
        let drained = self.process.as_ref().and_then(|process| process.drained);
        let serves = drained.is_none() && !site.truth.given_back.contains_key(&number);
        site.promise(self.node(), serves, || {
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
        release: Release,
        site: &mut Site,
    ) -> Result<Result<(), Refusal>, Died> {
        let Release { lease, reason, .. } = release;
        if let Some(process) = self.process() {
            process.ending.push((lease, from, run, call));
        }
        let refusal = self.step(Event::End { lease, reason }, site)?;
        if let (Some(_), Some(process)) = (&refusal, self.process()) {
            process.ending.retain(|waits| *waits != (lease, from, run, call));
        }
        Ok(refusal.map_or(Ok(()), Err))
    }

    /// Handles a message of a client in its session.
    pub(super) fn asked(&mut self, session: Session, ask: Ask, site: &mut Site) -> Result<(), Died> {
        let node = self.node();
        let Some(process) = self.process.as_mut() else {
            return Err(Died);
        };
        let bound = process.sessions.get(&session).copied();
        match (ask, bound) {
            (Ask::Attach(grant), None) => self.attach(session, grant, site)?,
            (Ask::Attach(_), Some(_)) => {}
            (Ask::Close, Some((id, lease))) => {
                process.sessions.remove(&session);
                process.connecting.retain(|(of, ..)| *of != session);
                self.step(Event::SessionClosed { session: id, lease }, site)?;
            }
            (Ask::Close, None) => {}
            (_, None) => tell(site, node, session, Tell::Closed),
            (Ask::Renew, Some((_, lease))) => {
                let answer = match self.renew(Event::Renew { lease }, lease, site)? {
                    Some(ttl) => Tell::Renewed { ttl },
                    None => Tell::NotRenewed,
                };
                tell(site, node, session, answer);
            }
            (Ask::Connect(worker), Some((_, lease))) => {
                if self.step(Event::Replace { lease, worker }, site)?.is_some() {
                    tell(site, node, session, Tell::NotConnected { worker });
                } else if let Some(process) = self.process() {
                    process.connecting.push((session, lease, worker));
                    self.connect_waiting(site);
                }
            }
            (Ask::Release, Some((_, lease))) => {
                let reason = EndReason::Released;
                // The client is told by the event of the lease's end.
                self.step(Event::End { lease, reason }, site)?;
            }
        }
        Ok(())
    }

    pub(super) fn attach(&mut self, session: Session, grant: Grant, site: &mut Site) -> Result<(), Died> {
        let node = self.node();
        let Some(process) = self.process.as_mut() else {
            return Err(Died);
        };
        // The real agent checks this when it opens the token.
        if grant.boot != process.boot {
            tell(site, node, session, Tell::Closed);
            return Ok(());
        }
        process.last_session += 1;
        let id = SessionId(process.last_session);
        let event = Event::Attach {
            session: id,
            lease: grant.lease,
            epoch: grant.epoch,
            tenant: grant.tenant,
            until: grant.until,
        };
        match self.renew(event, grant.lease, site)? {
            Some(ttl) => {
                if let Some(process) = self.process() {
                    process.sessions.insert(session, (id, grant.lease));
                }
                tell(site, node, session, Tell::Attached { ttl });
            }
            None => tell(site, node, session, Tell::Closed),
        }
        Ok(())
    }

    /// Makes a step that extends a lease's expiry, and checks that the lease had not expired.
    pub(super) fn renew(
        &mut self,
        event: Event,
        lease: LeaseId,
        site: &mut Site,
    ) -> Result<Option<Duration>, Died> {
        let node = self.node();
        if self.step(event, site)?.is_some() {
            return Ok(None);
        }
        let Some(process) = self.process.as_ref() else {
            return Err(Died);
        };
        let Some(ttl) = process.book.lease(lease).map(|lease| lease.ttl) else {
            return Ok(None);
        };
        let now = process.clock.shows(site.now);
        let Some(truth) = site.truth.leases.get_mut(&lease) else {
            return Ok(None);
        };
        let before = std::mem::replace(&mut truth.expires, now + ttl);
        truth.expires_truly = process.clock.true_time(now + ttl);
        site.promise(node, now < before, || {
            format!("lease {lease} was renewed at {now:?}, after its expiry at {before:?}")
        });
        Ok(Some(ttl))
    }

    /// Introduces clients to workers that are up or gone by now.
    pub(super) fn connect_waiting(&mut self, site: &mut Site) {
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
                    tell(site, node, session, Tell::Connected { worker: index, epoch });
                }
                Some(worker) if worker.state == WorkerState::Starting => {
                    process.connecting.push((session, id, index));
                }
                _ => tell(site, node, session, Tell::NotConnected { worker: index }),
            }
        }
    }
}
