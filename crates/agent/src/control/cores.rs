//! Resources of the host: cores, memory, and its name.

use crate::{AgentError, CoreChoice};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use std::fs;

/// Cores that this process may run on, and so may offer.
pub fn allowed() -> Vec<u32> {
    let Ok(mask) = sched_getaffinity(Pid::from_raw(0)) else {
        return Vec::new();
    };
    (0..CpuSet::count())
        .filter(|core| mask.is_set(*core).unwrap_or(false))
        .map(|core| core as u32)
        .collect()
}

/// Cores to offer.
pub(crate) fn offered(choice: &CoreChoice) -> Result<Vec<u32>, AgentError> {
    choose(choice, allowed())
}

fn choose(choice: &CoreChoice, allowed: Vec<u32>) -> Result<Vec<u32>, AgentError> {
    let refuse = |asked: String| AgentError::Cores {
        asked,
        allowed: match allowed.len() {
            0 => "no known core".into(),
            _ => format!("{} cores: {}", allowed.len(), CoreChoice::List(allowed.clone())),
        },
    };
    match choice {
        CoreChoice::All if allowed.is_empty() => Err(refuse("all cores".into())),
        CoreChoice::All => Ok(allowed),
        CoreChoice::Count(count) => match allowed.len().checked_sub(*count) {
            Some(skipped) if *count > 0 => Ok(allowed[skipped..].to_vec()),
            _ => Err(refuse(format!("{count} cores"))),
        },
        CoreChoice::NoCores => Ok(Vec::new()),
        CoreChoice::List(cores) => match cores.iter().find(|core| !allowed.contains(core)) {
            Some(core) => Err(refuse(format!("core {core}"))),
            None if cores.is_empty() => Err(refuse("no core".into())),
            None => Ok(cores.clone()),
        },
    }
}

/// Memory of the host, bytes.
pub(crate) fn memory_bytes() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kilobytes = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kilobytes.unwrap_or(0).saturating_mul(1024)
}

/// Refuses to offer more GPUs than the host shows.
pub(crate) fn check_gpus(wanted: u32) -> Result<(), AgentError> {
    let seen = gpus_seen();
    if wanted <= seen {
        return Ok(());
    }
    let what = format!(
        "--gpus {wanted}: this node shows {seen} (/dev/nvidia*, /dev/dri/renderD*); --unseen-gpus offers other devices"
    );
    Err(AgentError::Config { what })
}

/// Number of GPUs that the host shows: devices of NVIDIA's driver, or render nodes of other drivers.
fn gpus_seen() -> u32 {
    let count = |directory: &str, name: &str| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let is_number = |rest: &str| rest.parse::<u32>().is_ok();
        names
            .filter(|file| file.strip_prefix(name).is_some_and(is_number))
            .count() as u32
    };
    count("/dev", "nvidia").max(count("/dev/dri", "renderD"))
}

/// Name of the host, as its operator has set it; empty if it has none.
pub(crate) fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_cores_that_may_be_used_are_offered() {
        let choose = |choice| choose(&choice, vec![1, 3, 5]);
        assert_eq!(choose(CoreChoice::All).ok(), Some(vec![1, 3, 5]));
        assert_eq!(choose(CoreChoice::Count(2)).ok(), Some(vec![3, 5]));
        assert_eq!(choose(CoreChoice::List(vec![1, 5])).ok(), Some(vec![1, 5]));
        for bad in [
            CoreChoice::Count(4),
            CoreChoice::Count(0),
            CoreChoice::List(vec![1, 2]),
            CoreChoice::List(vec![]),
        ] {
            assert!(choose(bad.clone()).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn the_machine_has_cores_and_memory() {
        assert!(!allowed().is_empty());
        assert!(memory_bytes() > 1 << 20);
    }

    #[test]
    fn gpus_that_the_machine_does_not_show_are_not_offered() {
        assert!(check_gpus(gpus_seen()).is_ok());
        let refusal = check_gpus(gpus_seen() + 1).map_err(|error| error.to_string());
        assert!(refusal.is_err_and(|refusal| refusal.contains("--unseen-gpus")));
    }
}
