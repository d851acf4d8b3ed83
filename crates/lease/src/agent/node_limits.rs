//! Limits of a node's offers. An order that exceeds them is rejected before it is recorded, by the manager and by the
//! agent.

use super::{OfferedCores, OfferedGpus};
use hotlease_wire::Rejection;
use std::collections::BTreeSet;

/// All resources that the agent of a node can offer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeLimits {
    /// Cores that the agent may use.
    pub cores: BTreeSet<u32>,
    /// Number of GPUs that the agent has.
    pub gpus: u32,
    /// Memory of the node, bytes.
    pub memory_bytes: u64,
}

impl NodeLimits {
    /// Rejects an offer that the node cannot make. Resources that are `None` are not checked, because the agent's offer
    /// of them stays.
    pub fn check(
        &self,
        cores: &OfferedCores,
        gpus: Option<&OfferedGpus>,
        memory_bytes: Option<u64>,
    ) -> Result<(), Rejection> {
        let bad = |what: String| Err(Rejection::BadRequest { what });
        match cores {
            OfferedCores::These(cores) => {
                if let Some(core) = cores.difference(&self.cores).next() {
                    let known = &self.cores;
                    return bad(format!(
                        "core {core} is not one that the agent may use; it has {known:?}"
                    ));
                }
            }
            OfferedCores::Count(count) if *count as usize > self.cores.len() => {
                return bad(format!("the agent may use {} cores, not {count}", self.cores.len()));
            }
            OfferedCores::Unchanged | OfferedCores::All | OfferedCores::Count(_) => {}
        }
        let known = self.gpus;
        match gpus {
            Some(OfferedGpus::Count(count)) if *count > known => {
                return bad(format!("the agent has {known} GPUs, not {count}"));
            }
            Some(OfferedGpus::These(numbers)) => {
                if let Some(gpu) = numbers.iter().find(|gpu| **gpu >= known) {
                    return bad(format!(
                        "GPU {gpu} is not one that the agent has; it has {known}, numbered from 0"
                    ));
                }
            }
            Some(OfferedGpus::Count(_)) | None => {}
        }
        let known = self.memory_bytes;
        match memory_bytes {
            Some(bytes) if bytes > known => bad(format!("the node has {known} bytes of memory, not {bytes}")),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_of_more_than_the_node_has_is_rejected_and_the_error_names_both() {
        let limits = NodeLimits {
            cores: [2, 3].into(),
            gpus: 2,
            memory_bytes: 100,
        };
        let all = OfferedCores::All;
        for (cores, gpus, memory_bytes) in [
            (OfferedCores::Count(2), Some(OfferedGpus::Count(2)), Some(100)),
            (
                OfferedCores::These([3].into()),
                Some(OfferedGpus::These([0, 1].into())),
                None,
            ),
            (
                OfferedCores::These([].into()),
                Some(OfferedGpus::These([].into())),
                Some(1),
            ),
            (OfferedCores::Unchanged, None, None),
        ] {
            assert_eq!(
                limits.check(&cores, gpus.as_ref(), memory_bytes),
                Ok(()),
                "{cores:?} {gpus:?}"
            );
        }
        for (cores, gpus, memory_bytes, named) in [
            (OfferedCores::Count(7), None, None, ["2 cores", "7"]),
            (OfferedCores::These([2, 0].into()), None, None, ["core 0", "{2, 3}"]),
            (all.clone(), Some(OfferedGpus::Count(3)), None, ["2 GPUs", "3"]),
            (
                all.clone(),
                Some(OfferedGpus::These([1, 2].into())),
                None,
                ["GPU 2", "has 2"],
            ),
            (all, None, Some(101), ["100 bytes", "101"]),
        ] {
            let error = limits
                .check(&cores, gpus.as_ref(), memory_bytes)
                .expect_err("too much")
                .to_string();
            assert!(named.iter().all(|named| error.contains(named)), "{error}");
        }
    }
}
