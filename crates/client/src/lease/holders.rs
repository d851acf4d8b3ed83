//! Holders of the cores, places or GPUs that a refused request lacks, for the text of the refusal. Only holders that
//! listings show to this client's user at that time are named.

use crate::Error;
use crate::lease::direct;
use crate::lease::manager::ManagerConnection;
use crate::options::{LeaseOptions, Sharing};
use hotlease_wire::Rejection;
use hotlease_wire::grpc::{AgentInfo, LeaseInfo};
use nix::unistd::{Uid, User};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Largest number of holders that a refusal names.
const NAMED_MAX: usize = 4;

/// Cores and GPUs of one program's leases, and the time for which it has held its oldest lease.
#[derive(Debug, Default)]
struct Holding {
    cores: usize,
    gpus: usize,
    held: Duration,
}

/// Present use of the platform, as far as this client may see it.
#[derive(Debug)]
pub(crate) struct Occupancy {
    agents: Vec<AgentInfo>,
    leases: Vec<LeaseInfo>,
}

impl Occupancy {
    /// Asks the manager; `None` if it does not answer.
    pub(crate) async fn of(manager: &ManagerConnection) -> Option<Self> {
        Some(Self {
            agents: direct::refresh(manager).await.ok()?,
            leases: manager.leases().await.ok()?,
        })
    }

    /// The refusal with present figures, and whether these figures show room for the request. Returns `None` if the
    /// refusal has another reason than a lack of room.
    pub(crate) fn refresh(&self, refusal: &Rejection, options: &LeaseOptions) -> Option<(Rejection, bool)> {
        let most = |of: fn(&AgentInfo) -> u32| self.agents.iter().map(of).max().unwrap_or(0);
        let workers = |agent: &AgentInfo| agent.free_cores / u32::from(options.slots).max(1);
        let (asked, now) = match *refusal {
            Rejection::NoCapacity { asked, .. } => (asked, most(|agent| agent.free_cores)),
            Rejection::NoPlaces { asked, .. } => (asked, most(|agent| agent.free_places)),
            Rejection::NoGpus { asked, .. } => (asked, most(|agent| agent.free_gpus)),
            Rejection::NotTogether { asked, .. } => (asked, self.agents.iter().map(workers).sum()),
            _ => return None,
        };
        let mut refreshed = refusal.clone();
        match &mut refreshed {
            Rejection::NoCapacity { free, .. } | Rejection::NoPlaces { free, .. } | Rejection::NoGpus { free, .. } => {
                *free = now;
            }
            Rejection::NotTogether { found, .. } => *found = now,
            _ => {}
        }
        Some((refreshed, now >= asked))
    }

    /// The refusal as an error that names the holders, and the total that is offered if that is too little.
    pub(crate) fn explained(&self, refusal: Rejection, options: &LeaseOptions) -> Error {
        let mut holders = self.holders();
        let offered: usize = self.agents.iter().map(|agent| agent.cores.len()).sum();
        let cores = match refusal {
            Rejection::NoCapacity { asked, .. } => asked,
            Rejection::NotTogether { asked, .. } if options.sharing == Sharing::Exclusive => {
                asked.saturating_mul(options.slots.into())
            }
            _ => 0,
        };
        if cores as usize > offered {
            let held = if holders.is_empty() { "nothing" } else { &holders };
            holders = format!(
                "{held}; {} offered in all, so waiting helps only if more are",
                are(offered, "core")
            );
        }
        match holders.is_empty() {
            true => Error::Refused(refusal),
            false => Error::NoRoom { refusal, holders },
        }
    }

    /// Sentence about the holders; empty if nothing is held.
    fn holders(&self) -> String {
        let mut holdings: BTreeMap<(&str, &str), Holding> = BTreeMap::new();
        let mut seen: BTreeSet<(&str, u32)> = BTreeSet::new();
        for lease in self.leases.iter().filter(|lease| lease.state == "active") {
            let holding = holdings
                .entry((lease.tenant.as_str(), lease.label.as_str()))
                .or_default();
            let cores: BTreeSet<u32> = lease.cores.iter().copied().collect();
            let allocated = lease.usage.unwrap_or_default().allocated_ns;
            let held = Duration::from_nanos(allocated / (cores.len() as u64).max(1));
            holding.cores += cores.len();
            holding.gpus += lease.gpus.len();
            holding.held = holding.held.max(held);
            seen.extend(cores.into_iter().map(|core| (lease.agent.as_str(), core)));
        }
        let mut holdings: Vec<_> = holdings.into_iter().collect();
        holdings.sort_by_key(|(_, holding)| std::cmp::Reverse(holding.cores));
        let unnamed = holdings.len().saturating_sub(NAMED_MAX);
        let mut parts: Vec<String> = holdings
            .iter()
            .take(NAMED_MAX)
            .map(|((tenant, label), holding)| holding.text(tenant, label))
            .collect();
        if unnamed > 0 {
            parts.push(format!("{} by others", count(unnamed, "further holding")));
        }
        let taken = |agent: &AgentInfo| agent.cores.len().saturating_sub(agent.free_cores as usize);
        let hidden = self.agents.iter().map(taken).sum::<usize>().saturating_sub(seen.len());
        if hidden > 0 {
            parts.push(format!("{} by leases of others, or ending ones", count(hidden, "core")));
        }
        parts.join(", ")
    }
}

impl Holding {
    fn text(&self, tenant: &str, label: &str) -> String {
        let gpus = match self.gpus {
            0 => String::new(),
            gpus => format!(" and {}", count(gpus, "GPU")),
        };
        let label = if label.is_empty() { "a lease" } else { label };
        format!(
            "{}{gpus} by {label} of {} for {}",
            count(self.cores, "core"),
            user(tenant),
            time(self.held)
        )
    }
}

/// Name of the user of the tenant `uid:N`; the name of another tenant is returned unchanged.
fn user(tenant: &str) -> String {
    let uid = tenant.strip_prefix("uid:").and_then(|uid| uid.parse().ok());
    let user = uid.and_then(|uid| User::from_uid(Uid::from_raw(uid)).ok().flatten());
    user.map_or_else(|| tenant.to_owned(), |user| user.name)
}

fn count(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    }
}

fn time(held: Duration) -> String {
    match held.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

fn are(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what} is"),
        _ => format!("{number} {what}s are"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_wire::grpc::Usage;

    fn lease(label: &str, tenant: &str, cores: &[u32], seconds: u64) -> LeaseInfo {
        LeaseInfo {
            agent: "a".into(),
            label: label.into(),
            tenant: tenant.into(),
            state: "active".into(),
            cores: cores.to_vec(),
            usage: Some(Usage {
                allocated_ns: seconds * 1_000_000_000 * cores.len() as u64,
                ..Usage::default()
            }),
            ..LeaseInfo::default()
        }
    }

    fn agent(cores: u32, free: u32) -> AgentInfo {
        AgentInfo {
            id: "a".into(),
            state: "serving".into(),
            cores: (0..cores).collect(),
            free_cores: free,
            ..AgentInfo::default()
        }
    }

    #[test]
    fn a_rejection_lists_the_holders_their_share_and_start() {
        let now = Occupancy {
            agents: vec![agent(8, 1)],
            leases: vec![
                lease("notebook.ipynb (pid 7)", "chem", &[0], 3),
                lease("train.py (pid 4242)", "uid:0", &[1, 2], 200),
                lease("train.py (pid 4242)", "uid:0", &[3], 90),
            ],
        };
        let refusal = Rejection::NoCapacity {
            asked: 2,
            free: 0,
            offered: 8,
        };
        let (refreshed, has_room) = now
            .refresh(&refusal, &LeaseOptions::default())
            .expect("for lack of room");
        assert!(!has_room);
        let told = now.explained(refreshed, &LeaseOptions::default()).to_string();
        assert!(!told.contains("in all"), "8 are enough: {told}");
        for part in [
            "asked for: 2, free: 1, offered: 8",
            "3 cores by train.py (pid 4242) of root for 3 min",
            "1 core by notebook.ipynb (pid 7) of chem for 3 s",
            "3 cores by leases of others",
            "wait longer",
        ] {
            assert!(told.contains(part), "{told:?} lacks {part:?}");
        }
        assert!(now.refresh(&Rejection::BadToken, &LeaseOptions::default()).is_none());
        let released = Rejection::NotTogether { asked: 1, found: 0 };
        let found = Rejection::NotTogether { asked: 1, found: 1 };
        assert_eq!(now.refresh(&released, &LeaseOptions::default()), Some((found, true)));
    }

    #[test]
    fn a_rejection_of_more_than_is_offered_says_that_waiting_does_not_help() {
        let now = Occupancy {
            agents: vec![agent(2, 2)],
            leases: Vec::new(),
        };
        let options = LeaseOptions {
            slots: 2,
            ..LeaseOptions::default()
        };
        let told = |asked| {
            let refusal = Rejection::NotTogether { asked, found: 1 };
            now.explained(refusal, &options).to_string()
        };
        assert!(
            told(2).ends_with("held now: nothing; 2 cores are offered in all, so waiting helps only if more are"),
            "{}",
            told(2)
        );
        assert!(!told(1).contains("in all"));
        let shared = LeaseOptions {
            sharing: Sharing::Shared,
            ..options.clone()
        };
        let refusal = Rejection::NotTogether { asked: 4, found: 1 };
        let told = now.explained(refusal, &shared).to_string();
        assert!(!told.contains("in all"), "a core has several places: {told}");
    }

    #[test]
    fn many_holders_are_counted_and_an_idle_platform_names_none() {
        let leases = (0..50).map(|n| lease(&format!("{n}"), "chem", &[n], 1)).collect();
        let now = Occupancy {
            agents: vec![agent(50, 0)],
            leases,
        };
        let told = now.holders();
        assert!(told.ends_with("46 further holdings by others"), "{told}");
        let idle = Occupancy {
            agents: vec![agent(2, 2)],
            leases: Vec::new(),
        };
        assert_eq!(idle.holders(), "");
    }
}
