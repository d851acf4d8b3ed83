//! Slots that the holder of a lease lends to its peers: the other ranks of its job, for instance.
//!
//! The agent mints a token for them, and only it knows the key. With it a peer connects to these slots and invokes what
//! the holder has loaded; it cannot load, renew, release or lend further. The holder's usage is what is billed.

use crate::code::Code;
use crate::control::Control;
use crate::invoker::{Inner, Invoker};
use crate::lease::{Lease, Plan};
use crate::manager::Manager;
use crate::options::{LeaseOptions, Placement, Spread};
use crate::{Error, LeaseId};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hotlease_fabric::doorbell::Doorbell;
use hotlease_wire::Refusal;
use hotlease_wire::grpc::{Grant, SlotOffer};
use hotlease_wire::token::TOKEN_BYTES_MAX;
use prost::Message;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// What its text begins with.
const PREFIX: &str = "hotlease-slots:";
/// Bytes of the text of one; it holds a token, two addresses and some names.
const TEXT_BYTES_MAX: usize = 4096;

/// What a peer needs to use slots that were lent: where they are, and the token. Its text ([`fmt::Display`],
/// [`FromStr`]) goes to peers by the program's own means, an MPI message for instance.
///
/// It is a secret: who has it, and is the same tenant, may invoke. So it belongs neither into logs nor on command lines.
#[derive(Clone, PartialEq)]
pub struct Invitation {
    pub(crate) grant: Grant,
}

impl Invitation {
    /// What others of the same tenant offer to the job that the options name ([`LeaseOptions::job`]), as the manager has it:
    /// one for each published [`Offer`].
    ///
    /// # Errors
    /// [`Error::NotRunning`] without a manager; [`Error::Refused`] without a job.
    pub fn find(options: &LeaseOptions) -> Result<Vec<Self>, Error> {
        let options = options.clone();
        let offers = Control::get()?.run(async move {
            let manager = Manager::of(&options)?;
            manager.find_offers(options.job).await
        })?;
        let invitations = offers.iter().map(|offer| offer.invitation.parse());
        // One that another version has published is nobody's fault here.
        Ok(invitations.filter_map(Result::ok).collect())
    }

    /// The lease that the slots are of.
    pub fn lease(&self) -> &str {
        &self.grant.lease
    }
}

impl fmt::Display for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{PREFIX}{}",
            URL_SAFE_NO_PAD.encode(self.grant.encode_to_vec())
        )
    }
}

/// Without its secret.
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
        // Says nothing of the text, which may be most of a secret.
        let bad = || Error::Options {
            what: "the invitation is damaged, or is none".into(),
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

/// Slots that are lent: until [`Offer::revoke`], until their time is over, or until their lease ends, which dropping the
/// offer does not change.
pub struct Offer {
    holder: Weak<Inner>,
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
    /// For peers.
    pub fn invitation(&self) -> &Invitation {
        &self.invitation
    }

    /// Tells the manager of it, under the name of the job that the lease belongs to ([`LeaseOptions::job`]), so that the other
    /// ranks find it with [`Invitation::find`]. It is forgotten with the lease, by a manager that is started again, and when
    /// it is taken back.
    ///
    /// # Errors
    /// [`Error::NotRunning`] without a manager; [`Error::Refused`] without a job, and for a lease that the manager does not
    /// know (of one that was not got from it, it hears soon after).
    pub fn publish(&self) -> Result<(), Error> {
        let Some(holder) = self.holder.upgrade() else {
            return Err(Refusal::UnknownLease.into());
        };
        let left = self.lasts.map(|lasts| lasts.saturating_sub(self.begun.elapsed()));
        let options = holder.plan.options.clone();
        let offer = SlotOffer {
            job: options.job.clone(),
            lease: self.lease.to_string(),
            delegation: self.delegation,
            slots: self.slots,
            lasts_ms: left.map_or(0, |left| {
                u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1)
            }),
            invitation: self.invitation.to_string(),
        };
        Control::get()?.run(async move { Manager::of(&options)?.put_offer(offer).await })?;
        self.published.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Takes the slots back. Peers' invocations that have not begun do not run, and what runs goes on to its end without
    /// them; either way they are told [`Error::LeaseEnded`], with
    /// [`EndReason::TakenBack`](crate::EndReason::TakenBack).
    ///
    /// # Errors
    /// Those of the connection to the agent; a lease that is over has taken its slots back.
    pub fn revoke(self) -> Result<(), Error> {
        let Some(holder) = self.holder.upgrade() else {
            return Ok(());
        };
        Control::get()?.run(async move {
            let (lease, delegation) = (self.lease, self.delegation);
            let revoked = holder.parts.revoke(self.worker, lease, delegation).await;
            if self.published.load(Ordering::Relaxed) {
                let manager = Manager::of(&holder.plan.options)?;
                if let Err(error) = manager.withdraw_offer(lease.to_string(), delegation).await {
                    tracing::debug!(%lease, %error, "an offer that opens nothing any more is still listed");
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
    /// Lends slots to peers of the same tenant, who [`Invoker::join`] with the offer's invitation: for as long as `lasts`,
    /// or (`None`) as the lease. The holder may go on using them; a slot runs one invocation at a time. Of one lease there
    /// are at most 64 offers at a time, with 64 peers each.
    ///
    /// # Errors
    /// [`Error::NoSuchSlot`]; [`Error::Options`] for no slots, or for those of several agents: make an offer of each.
    /// [`Error::Refused`] by the agent.
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

    /// Connects to slots that somebody else's lease lends, whose holder has loaded the same code. Of the options those
    /// count that say how to call; workers, slots and the lease are what the holder has made them. When the holder takes
    /// them back, or is gone, calls fail with [`Error::LeaseEnded`], and nothing is taken instead.
    ///
    /// # Errors
    /// [`Error::Refused`] if the invitation opens nothing (any more), or if the holder has not loaded this code;
    /// [`Error::NotRunning`] if its agent is gone.
    pub fn join(code: &Code, invitation: &Invitation, options: LeaseOptions) -> Result<Self, Error> {
        let options = LeaseOptions {
            workers: 1,
            slots: 1,
            renew_lease: false,
            spread: Spread::OneAgent,
            placement: Placement::Managed,
            ..options
        };
        options.check()?;
        let plan = Plan {
            code: code.clone(),
            options: Arc::new(options),
            doorbell: Arc::new(Doorbell::create()?),
        };
        let (joined, grant) = (plan.clone(), invitation.grant.clone());
        let taken = Control::get()?.run(async move {
            let manager = Manager::of(&joined.options)?;
            Lease::join(&joined, &manager, grant).await
        })?;
        Ok(Self::new(plan, vec![taken]))
    }
}

/// What the agent said to a delegation.
pub(crate) struct Lent {
    pub(crate) lease: LeaseId,
    /// Any of the workers.
    pub(crate) worker: u16,
    pub(crate) delegation: u32,
    pub(crate) grant: Grant,
}

/// What is refused of a lease that is not one's own.
pub(crate) fn not_the_holder() -> Error {
    Refusal::NotPermitted {
        what: "to lend what was lent: only the holder of a lease makes offers".into(),
    }
    .into()
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
        assert!(
            empty.to_string().parse::<Invitation>().is_err(),
            "without a token"
        );
    }
}
