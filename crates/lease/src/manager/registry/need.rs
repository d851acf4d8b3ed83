//! Demand of a lease on one agent.

use crate::request::{CoreUse, LeaseSpec};
use std::collections::BTreeSet;

/// All resources that a lease needs of one agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// Cores or places for the slots.
    pub room: Need,
    /// GPUs.
    pub gpus: u32,
}

impl From<LeaseSpec> for Demand {
    fn from(spec: LeaseSpec) -> Self {
        let slots = spec.all_slots();
        Self {
            room: match spec.sharing {
                CoreUse::Exclusive(_) => Need::Cores(slots),
                CoreUse::Shared => Need::Places(slots),
            },
            gpus: spec.all_gpus(),
        }
    }
}

impl From<Need> for Demand {
    fn from(room: Need) -> Self {
        Self { room, gpus: 0 }
    }
}

/// Number of cores, or of places on shared cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Cores for an exclusive lease.
    Cores(u32),
    /// Places for warm slots on shared cores.
    Places(u32),
}

impl Need {
    /// Need of a lease whose slots run on these cores: a shared core occurs several times. (A shared lease with a
    /// single slot is treated like an exclusive lease, until the agent reports again.)
    pub(in crate::manager) fn of(cores: &[u32]) -> Self {
        let count = cores.len() as u32;
        let different: BTreeSet<&u32> = cores.iter().collect();
        if different.len() < cores.len() {
            Self::Places(count)
        } else {
            Self::Cores(count)
        }
    }

    /// The number of cores or places.
    pub fn count(self) -> u32 {
        match self {
            Self::Cores(count) | Self::Places(count) => count,
        }
    }
}
