//! Checks of the hardware: cores, and causes of varying latency.

use super::Finding;
use hotlease_terminal::quantity;
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use std::fs;

pub(super) const CHECKS: &[fn() -> Vec<Finding>] = &[cores, quota, siblings, virtualisation, counter];

fn usable_cores() -> nix::Result<Vec<u32>> {
    let set = sched_getaffinity(Pid::from_raw(0))?;
    let usable = (0..CpuSet::count()).filter(|core| set.is_set(*core).unwrap_or(false));
    Ok(usable.map(|core| core as u32).collect())
}

fn cores() -> Vec<Finding> {
    const CHECK: &str = "cores";
    let cores = match usable_cores() {
        Ok(cores) => cores,
        Err(error) => {
            let advice = "check what the container or batch system allows";
            return vec![Finding::fail(
                CHECK,
                format!("cannot read the affinity mask: {error}"),
                advice,
            )];
        }
    };
    let finding = format!("{} usable ({})", cores.len(), quantity::cores(&cores));
    vec![match cores.len() {
        0 | 1 => Finding::warn(
            CHECK,
            finding,
            "client and slot take turns on one core, so a call costs scheduler time slices; give it two or more",
        ),
        _ => Finding::ok(CHECK, finding),
    }]
}

/// Checks the processor quota. A quota below the number of cores stops polling threads in the middle of a period.
fn quota() -> Vec<Finding> {
    const CHECK: &str = "processor quota";
    let Ok(limit) = fs::read_to_string("/sys/fs/cgroup/cpu.max") else {
        return vec![Finding::ok(CHECK, "none is set in this control group")];
    };
    let Some(quota) = cores_of_quota(&limit) else {
        return vec![Finding::ok(CHECK, "none")];
    };
    let usable = usable_cores().map(|cores| cores.len()).unwrap_or(1);
    let finding = format!("{quota:.1} cores of processor time for {usable} usable cores");
    if quota + 0.01 < usable as f64 {
        let offered = (quota as usize).max(1);
        let advice = format!(
            "polling slots will be stopped for milliseconds at a time; raise the quota, or offer fewer with `hotlease up --cores {offered}`"
        );
        return vec![Finding::warn(CHECK, finding, advice)];
    }
    vec![Finding::ok(CHECK, finding)]
}

/// Cores that the text of `cpu.max` allows: quota and period in microseconds, or `max`.
fn cores_of_quota(text: &str) -> Option<f64> {
    let mut words = text.split_whitespace();
    let quota: f64 = words.next()?.parse().ok()?;
    let period: f64 = words.next()?.parse().ok()?;
    (period > 0.0).then_some(quota / period)
}

fn siblings() -> Vec<Finding> {
    const CHECK: &str = "hardware threads";
    let active = fs::read_to_string("/sys/devices/system/cpu/smt/active");
    vec![match active.as_deref().map(str::trim) {
        Ok("1") => Finding::warn(
            CHECK,
            "two or more share a core (SMT is on)",
            "a polling slot slows its sibling; offer one thread of each core, for example `hotlease up --cores 0,2,4`",
        ),
        Ok(_) => Finding::ok(CHECK, "one to a core"),
        Err(_) => Finding::ok(CHECK, "the kernel does not say whether they share cores"),
    }]
}

/// Flags of the first processor.
fn processor_flags() -> Option<Vec<String>> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text
        .lines()
        .find(|line| line.starts_with("flags") || line.starts_with("Features"))?;
    let (_, flags) = line.split_once(':')?;
    Some(flags.split_whitespace().map(str::to_owned).collect())
}

fn has(flags: &[String], flag: &str) -> bool {
    flags.iter().any(|has| has == flag)
}

fn virtualisation() -> Vec<Finding> {
    const CHECK: &str = "virtualisation";
    vec![match processor_flags() {
        Some(flags) if has(&flags, "hypervisor") => Finding::warn(
            CHECK,
            "this is a virtual machine",
            "its cores may move and share caches with others, so latency varies; compare with the baselines that \
             `hotlease bench` measures in the same run",
        ),
        _ => Finding::ok(CHECK, "none seen"),
    }]
}

/// Checks the time-stamp counter, by which deadlines and hot budgets are measured.
fn counter() -> Vec<Finding> {
    const CHECK: &str = "time-stamp counter";
    if !cfg!(target_arch = "x86_64") {
        return vec![Finding::ok(CHECK, "the architecture's own, which is constant")];
    }
    vec![match processor_flags() {
        Some(flags) if has(&flags, "constant_tsc") && has(&flags, "nonstop_tsc") => {
            Finding::ok(CHECK, "constant, and goes on in sleep states")
        }
        Some(_) => Finding::warn(
            CHECK,
            "the kernel does not say that it is constant",
            "if its frequency changes, hot budgets and metered times are wrong by as much",
        ),
        None => Finding::warn(CHECK, "/proc/cpuinfo cannot be read", "mount /proc"),
    }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_read_in_cores() {
        assert_eq!(cores_of_quota("max 100000\n"), None);
        assert_eq!(cores_of_quota("150000 100000\n"), Some(1.5));
        assert_eq!(cores_of_quota("150000 0\n"), None);
        assert_eq!(cores_of_quota(""), None);
    }

    #[test]
    fn this_thread_may_run_somewhere() {
        assert!(!usable_cores().unwrap().is_empty());
    }
}
