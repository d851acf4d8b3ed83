//! Slots that the holder of a lease lends to its peers: the other ranks of its job, for instance.
//!
//! The agent makes a token for these slots, with a key that only the agent has. With the token a peer connects to these
//! slots and invokes the functions that the holder has loaded. A peer cannot load, renew, release or lend further. The
//! holder pays for the usage.

use crate::code::Code;
use crate::control::Control;
use crate::invoker::Invoker;
use crate::lease::manager::ManagerConnection;
use crate::lease::slots::LeasedSlots;
use crate::lease::{Lease, LeasePlan};
use crate::options::{LeaseOptions, Placement, Spread};
use crate::{Error, LeaseId};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hotlease_fabric::doorbell::Doorbell;
use hotlease_wire::Rejection;
use hotlease_wire::grpc::{Grant, SlotOffer};
use hotlease_wire::token::TOKEN_BYTES_MAX;
use prost::Message;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// First bytes of an invitation's text.
const PREFIX: &str = "hotlease-slots:";
/// Largest number of bytes of an invitation's text, which contains a token, two addresses and some names.
const TEXT_BYTES_MAX: usize = 4096;

/// Everything that a peer needs to use lent slots: their addresses, and the token. The program itself passes the text
/// ([`fmt::Display`], [`FromStr`]) to peers, in an MPI message for instance.
///
/// The text is a secret: any process of the same tenant that has it may invoke. Keep it out of logs and off command
/// lines.
#[derive(Clone, PartialEq)]
pub struct Invitation {
    pub(crate) grant: Grant,
}

impl Invitation {
    /// Returns the invitations of all [`Offer`]s that members of the same tenant have published for the job in these
    /// options ([`LeaseOptions::job`]). Asks the manager for them.
    ///
    /// # Errors
    /// [`Error::NotRunning`] without a manager; [`Error::Refused`] without a job.
    pub fn find(options: &LeaseOptions) -> Result<Vec<Self>, Error> {
        let options = options.clone();
        let offers = Control::get()?.run(async move {
            let manager = ManagerConnection::of(&options)?;
            manager.find_offers(options.job).await
        })?;
        let invitations = offers.iter().map(|offer| offer.invitation.parse());
        // Invitations that another version has published may not be readable: they are skipped, without an error.
        Ok(invitations.filter_map(Result::ok).collect())
    }

    /// The lease that the slots belong to.
    pub fn lease(&self) -> &str {
        &self.grant.lease
    }
}

impl fmt::Display for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", URL_SAFE_NO_PAD.encode(self.grant.encode_to_vec()))
    }
}

/// Shows the lease, but not the secret.
impl fmt::Debug for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Invitation")
            .field("lease", &self.grant.lease)
            .finish_non_exhaustive()
    }
}

impl FromStr for Invitation {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        // The error does not quote the text, which may be most of a secret.
        let bad = || Error::Options {
            what: "the text is no invitation, or is damaged".into(),
        };
        let body = text.trim().strip_prefix(PREFIX).ok_or_else(bad)?;
        if body.len() > TEXT_BYTES_MAX {
            return Err(bad());
        }
        let bytes = URL_SAFE_NO_PAD.decode(body).map_err(|_| bad())?;
        let grant = Grant::decode(bytes.as_slice()).map_err(|_| bad())?;
        if grant.token.is_empty() || grant.token.len() > TOKEN_BYTES_MAX || !grant.others.is_empty() {
            return Err(bad());
        }
        Ok(Self { grant })
    }
}

/// Lent slots. The loan lasts until [`Offer::revoke`], until its time is over, or until the lease ends; dropping the
/// offer does not end the loan.
pub struct Offer {
    holder: Weak<LeasedSlots>,
    lease: LeaseId,
    worker: u16,
    delegation: u32,
    invitation: Invitation,
    slots: u32,
    begun: Instant,
    lasts: Option<Duration>,
    published: AtomicBool,
}

impl Offer {
    /// The invitation to give to peers.
    pub fn invitation(&self) -> &Invitation {
        &self.invitation
    }

    /// Publishes the offer at the manager, under the name of the job that the lease belongs to
    /// ([`LeaseOptions::job`]), so that the other ranks find it with [`Invitation::find`]. The manager drops the offer
    /// when the lease ends, when the manager is restarted, and when the offer is revoked.
    ///
    /// # Errors
    /// [`Error::NotRunning`] without a manager; [`Error::Refused`] without a job, and for a lease that the manager has
    /// not recorded. If an agent granted the lease directly, the manager records it soon after the grant.
    pub fn publish(&self) -> Result<(), Error> {
        let Some(holder) = self.holder.upgrade() else {
            return Err(Rejection::UnknownLease.into());
        };
        let left = self.lasts.map(|lasts| lasts.saturating_sub(self.begun.elapsed()));
        let options = holder.plan.options.clone();
        let offer = SlotOffer {
            job: options.job.clone(),
            lease: self.lease.to_string(),
            delegation: self.delegation,
            slots: self.slots,
            lasts_ms: left.map_or(0, |left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1)),
            invitation: self.invitation.to_string(),
        };
        Control::get()?.run(async move { ManagerConnection::of(&options)?.put_offer(offer).await })?;
        self.published.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Takes the slots back. Peers' invocations that have not begun do not run; a function that is running continues to
    /// its end, but its result is lost. In both cases the peers get [`Error::LeaseEnded`] with
    /// [`EndReason::TakenBack`](crate::EndReason::TakenBack).
    ///
    /// # Errors
    /// Errors of the connection to the agent. If the lease is over, its slots are taken back already, which is no
    /// error.
    pub fn revoke(self) -> Result<(), Error> {
        let Some(holder) = self.holder.upgrade() else {
            return Ok(());
        };
        Control::get()?.run(async move {
            let (lease, delegation) = (self.lease, self.delegation);
            let revoked = holder.parts.revoke(self.worker, lease, delegation).await;
            if self.published.load(Ordering::Relaxed) {
                let manager = ManagerConnection::of(&holder.plan.options)?;
                if let Err(error) = manager.withdraw_offer(lease.to_string(), delegation).await {
                    tracing::debug!(%lease, %error, "an offer whose lease has ended is still listed");
                }
            }
            revoked
        })
    }
}

impl fmt::Debug for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offer")
            .field("lease", &self.lease)
            .field("delegation", &self.delegation)
            .finish_non_exhaustive()
    }
}

impl Invoker {
    /// Lends slots to peers of the same tenant, which [`Invoker::join`] with the offer's invitation. The loan lasts for
    /// `lasts`, or as long as the lease if `lasts` is `None`. The holder may go on using the slots; a slot runs one
    /// invocation at a time. One lease has at most 64 offers at a time, with 64 peers each.
    ///
    /// # Errors
    /// [`Error::NoSuchSlot`]; [`Error::Options`] for no slots, or for slots of several agents: make one offer for
    /// each agent. [`Error::Refused`] by the agent.
    pub fn offer(&self, slots: &[usize], lasts: Option<Duration>) -> Result<Offer, Error> {
        let inner = self.inner().clone();
        let count = slots.len() as u32;
        let begun = Instant::now();
        let slots = slots.to_vec();
        let lent = Control::get()?.run(async move {
            let lent = inner.lend(&slots, lasts).await?;
            Ok((Arc::downgrade(&inner), lent))
        })?;
        let (holder, lent) = lent;
        Ok(Offer {
            holder,
            lease: lent.lease,
            worker: lent.worker,
            delegation: lent.delegation,
            invitation: Invitation { grant: lent.grant },
            slots: count,
            begun,
            lasts,
            published: AtomicBool::new(false),
        })
    }

    /// Connects to slots that the holder of another lease lends, and on which it has loaded the same code. Only the
    /// options about calls have an effect: the holder has decided the number of workers and slots, and all else about
    /// the lease. When the holder takes the slots back, or is gone, calls fail with [`Error::LeaseEnded`], and no other
    /// lease is taken.
    ///
    /// # Errors
    /// [`Error::Refused`] if the invitation is not valid (any more), or if the holder has not loaded this code;
    /// [`Error::NotRunning`] if the agent is gone.
    pub fn join(code: &Code, invitation: &Invitation, options: LeaseOptions) -> Result<Self, Error> {
        let options = LeaseOptions {
            workers: 1,
            slots: 1,
            replace_lease: false,
            spread: Spread::OneAgent,
            placement: Placement::Managed,
            ..options
        };
        options.check()?;
        let plan = LeasePlan::new(code.clone(), options, Doorbell::create()?);
        let (joined, grant) = (plan.clone(), invitation.grant.clone());
        let taken = Control::get()?.run(async move {
            let manager = ManagerConnection::of(&joined.options)?;
            Lease::join(&joined, &manager, grant).await
        })?;
        Ok(Self::new(plan, vec![taken]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn invitation() -> Invitation {
        Invitation {
            grant: Grant {
                lease: "0a".repeat(8),
                token: vec![7; 100],
                session_socket: "/run/session.sock".into(),
                ..Grant::default()
            },
        }
    }

    #[test]
    fn an_invitation_survives_as_text_and_is_no_secret_in_a_log() {
        let text = invitation().to_string();
        assert_eq!(text.parse::<Invitation>().expect("its own text"), invitation());
        assert_eq!(
            format!(" {text}\n").parse::<Invitation>().expect("spaces"),
            invitation()
        );
        let shown = format!("{:?}", invitation());
        assert!(shown.contains("0a0a") && !shown.contains("7, 7"), "{shown}");
    }

    #[test]
    fn a_text_that_is_no_invitation_is_refused_without_being_quoted() {
        let text = invitation().to_string();
        let long = format!("{PREFIX}{}", "A".repeat(TEXT_BYTES_MAX + 1));
        for bad in [
            "",
            "x",
            PREFIX,
            &text[1..],
            &long,
            "hotlease-slots:!!!!",
            "hotlease-slots:AAAA",
        ] {
            let error = bad.parse::<Invitation>().expect_err("no invitation").to_string();
            assert!(bad.len() < 3 || !error.contains(bad), "{error}");
        }
        let mut empty = invitation();
        empty.grant.token.clear();
        assert!(empty.to_string().parse::<Invitation>().is_err(), "without a token");
    }
}
