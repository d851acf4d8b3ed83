//! Calls inside each kind of sandbox, compared with calls of a worker without a sandbox: both use the same memory and
//! should take the same time.

use super::super::host_info::HostInfo;
use super::super::measured_lease::{hot, pin_apart};
use super::super::pin::Cores;
use super::super::record::{Record, Target, params};
use super::super::samples::{Block, Clock, Pair};
use super::leases::StartPlatforms;
use hotlease_client::{Invoker, LeaseOptions};
use hotlease_sandbox::Kind;
use hotlease_terminal::functions::functions;
use serde_json::json;

/// Number of calls of a block, and of unmeasured calls before it.
const CALLS: usize = 2000;
const WARM_UP: usize = 500;
/// Promised maximum of the time by which a call in a sandbox takes longer than a call outside, nanoseconds.
const LIMIT_NS: f64 = 20.0;
/// Time by which calls in Docker take longer, from the paper about rFaaS, nanoseconds.
const DOCKER_NS: f64 = 50.0;

pub(super) fn rows(leases: &StartPlatforms, kinds: &[Kind], rounds: u32) -> anyhow::Result<Vec<Record>> {
    let clock = Clock::calibrate();
    let mut records = Vec::new();
    for &kind in kinds {
        // A machine's calls go through its monitor.
        if matches!(kind, Kind::Process | Kind::MicroVm) || leases.available(kind)?.is_err() {
            continue;
        }
        let (mut pair, mut cores) = (Pair::new()?, Cores::default());
        for _ in 0..rounds {
            let (outside, _) = block(leases, Kind::Process, &clock)?;
            let (inside, there) = block(leases, kind, &clock)?;
            pair.add(&outside, &inside);
            cores = there;
        }
        let params = params! { "program": "C", "in": kind.name(), "start": "hot call", "size_bytes": 8 };
        let machine = HostInfo::here(cores);
        let mut record = Record::of_pair("cold", params, "a hot call in kind process", &pair, &machine);
        let added = pair.difference();
        record.details = params! {
            "p25": pair.measured.quantile(0.25),
            "p75": pair.measured.quantile(0.75),
            "papers": json!({ "docker_ns": DOCKER_NS, "of_it": added / DOCKER_NS }),
        };
        let what = format!("hot call in {kind} above one outside, ns");
        record.targets.push(Target::at_most(what, added, LIMIT_NS));
        records.push(record);
    }
    Ok(records)
}

/// Measures calls on a new lease. The agent assigns the same core to each of these leases.
fn block(leases: &StartPlatforms, kind: Kind, clock: &Clock) -> anyhow::Result<(Block, Cores)> {
    let options = leases.options(leases.bare(), kind);
    let options = LeaseOptions {
        transport: Some("shm".into()),
        runtime_dir: options.runtime_dir,
        label: options.label,
        sandbox: options.sandbox,
        ..hot()
    };
    let invoker = Invoker::allocate(&functions()?, options)?;
    let (_, cores, pinned) = pin_apart(&invoker)?;
    let echo = invoker.function("echo")?.on_slot(0)?;
    let mut output = [0; 8];
    let block = clock.block(WARM_UP, CALLS, || echo.invoke(&[5; 8], &mut output).map(drop))?;
    drop(pinned);
    invoker.deallocate()?;
    Ok((block, cores))
}
