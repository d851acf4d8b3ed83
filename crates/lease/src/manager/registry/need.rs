//! What a lease needs of one agent.

use std::collections::BTreeSet;

/// All that a lease needs of one agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// Where its slots run.
    pub room: Need,
    /// GPUs.
    pub gpus: u32,
}

impl From<Need> for Demand {
    fn from(room: Need) -> Self {
        Self { room, gpus: 0 }
    }
}

/// Cores, or places on shared ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// So many cores of its own.
    Cores(u32),
    /// Places for so many warm slots on shared cores.
    Places(u32),
}

impl Need {
    /// What a lease had whose slots ran on these cores: those of a shared one come several times. (One with a single
    /// slot is taken for an exclusive one, until the agent reports again.)
    pub(in crate::manager) fn of(cores: &[u32]) -> Self {
        let count = cores.len() as u32;
        let different: BTreeSet<&u32> = cores.iter().collect();
        if different.len() < cores.len() {
            Self::Places(count)
        } else {
            Self::Cores(count)
        }
    }

    /// How many.
    pub fn count(self) -> u32 {
        match self {
            Self::Cores(count) | Self::Places(count) => count,
        }
    }
}
