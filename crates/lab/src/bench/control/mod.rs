//! `hotlease bench control`: the control plane alone. A manager runs in its own process, with its ledger on disk.
//! Simulated agents, which have an agent's state machines but no workers, connect to it over real TLS connections.

mod agent;
mod fleet;
mod leases;
mod simulated_agents;
mod site;

use super::host_info::HostInfo;
use super::pin::Cores;
use super::record::{Figures, Record, Target, params, print, round};
use anyhow::ensure;
use clap::Args;
use fleet::Fleet;
pub(super) use fleet::{SimulatedAgentsArgs, run_simulated_agents};
use hotlease_terminal::output::Printer;
use leases::LeaseClients;
use site::{BenchSite, ManagerLoad};
use std::path::PathBuf;
use std::time::Duration;

/// Grants per second, and the cost of many agents and leases for a manager
///
/// Starts a manager with its ledger on disk, and simulated agents that register, report every half second and grant
/// over TLS, each over its own connections. Measures a grant, next to an empty request to the same manager; grants
/// and releases per second; memory per agent and per lease; and the manager's processor time while there are no
/// requests. 10,000 agents need 16,000 descriptors per process: run as root, or raise the limit (`ulimit -n`).
#[derive(Debug, Args)]
pub(super) struct ControlArgs {
    /// Simulated agents
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=16_000))]
    agents: u32,
    /// Leases of one core to hold while the manager is at rest
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    leases: u32,
    /// Clients that send requests at the same time, for grants per second
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    clients: u32,
    /// Seconds of counting grants, and then of watching the manager at rest
    #[arg(long, value_name = "S", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Directory in which a new folder for the ledger is made [default: the directory for temporary files]
    #[arg(long, value_name = "DIR")]
    disk: Option<PathBuf>,
}

/// Number of single grants that are timed.
const TIMED: usize = 500;
const GRANT_MS_MAX: f64 = 1.0;
const GRANTS_PER_SECOND_MIN: f64 = 1000.0;

pub(super) fn carry_out(args: &ControlArgs, output: &mut Printer) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let records = runtime.block_on(measure(args))?;
    print(output, "the control plane", &records, |record| {
        record.params["what"].as_str().unwrap_or_default().to_owned()
    })?;
    output.flush()
}

async fn measure(args: &ControlArgs) -> anyhow::Result<Vec<Record>> {
    let machine = HostInfo::here(Cores::default());
    let params = |what: &str| params! { "what": what, "agents": args.agents, "leases": args.leases };
    let mut records = Vec::new();
    let site = BenchSite::start(args.disk.as_deref(), args.agents)?;
    let empty = site.load()?;
    let mut fleet = Fleet::start(&site, args.agents, args.leases)?;
    let leasing = LeaseClients::new(&site, args.clients)?;

    let pair = leasing.timed(TIMED).await?;
    let mut grant = Record::of_pair(
        "control",
        params("a grant"),
        "an empty request to the manager",
        &pair,
        &machine,
    );
    let median_ms = pair.measured.quantile(0.5) as f64 / 1e6;
    grant
        .targets
        .push(Target::at_most("a grant, median, ms", median_ms, GRANT_MS_MAX));
    records.push(grant);

    let seconds = Duration::from_secs(args.seconds);
    let (cycles, per_second) = leasing.cycles(seconds).await?;
    let what = params("leases granted and released");
    let mut rate = Record::new("control", what, "leases", Figures::Rate { per_second }, &machine);
    rate.samples = cycles;
    rate.targets
        .push(Target::at_least("grants per second", per_second, GRANTS_PER_SECOND_MIN));
    records.push(rate);

    let registered = site.load()?;
    let begun = std::time::Instant::now();
    leasing.hold(args.leases).await?;
    let per_second = f64::from(args.leases) / begun.elapsed().as_secs_f64();
    let mut holding = Record::new(
        "control",
        params("leases granted and held"),
        "leases",
        Figures::Rate { per_second },
        &machine,
    );
    holding.samples = args.leases.into();
    records.push(holding);

    records.extend(at_rest(args, &site, &mut fleet, &machine, seconds, (empty, registered)).await?);
    Ok(records)
}

async fn at_rest(
    args: &ControlArgs,
    site: &BenchSite,
    fleet: &mut Fleet,
    machine: &HostInfo,
    seconds: Duration,
    (empty, registered): (ManagerLoad, ManagerLoad),
) -> anyhow::Result<Vec<Record>> {
    // Every agent reports twice in this time.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (before, heard) = (site.load()?, fleet.accepted_reports()?);
    tokio::time::sleep(seconds).await;
    let (after, reports) = (site.load()?, fleet.accepted_reports()? - heard);
    let serving = site.serving().await?;
    let left = fleet.leases()?;
    ensure!(
        left == args.leases as usize,
        "{left} leases are left of {}",
        args.leases
    );
    let params = |what: &str| params! { "what": what, "agents": args.agents, "leases": args.leases };
    let bytes = |what: &str, before: u64, after: u64| {
        let figures = Figures::Change { before, after };
        Record::new("control", params(what), "bytes", figures, machine)
    };
    let per = |more: u64, number: u32| round(more as f64 / f64::from(number));
    let mut agents = bytes(
        "memory without agents, and with them",
        empty.rss_bytes,
        registered.rss_bytes,
    );
    let more = registered.rss_bytes.saturating_sub(empty.rss_bytes);
    agents.details = params! { "bytes_per_agent": per(more, args.agents) };
    let mut leases = bytes(
        "memory without leases, and with them",
        registered.rss_bytes,
        after.rss_bytes,
    );
    let more = after.rss_bytes.saturating_sub(registered.rss_bytes);
    leases.details = params! { "bytes_per_lease": per(more, args.leases) };
    let busy = (after.cpu - before.cpu).as_secs_f64() / seconds.as_secs_f64();
    let figures = Figures::Rate {
        per_second: reports as f64 / seconds.as_secs_f64(),
    };
    let mut rest = Record::new("control", params("reports taken at rest"), "reports", figures, machine);
    rest.samples = reports;
    rest.details = params! { "cores": round(busy), "agents_serving": serving };
    rest.targets.push(Target::at_least(
        "agents that are not suspected",
        f64::from(serving),
        args.agents.into(),
    ));
    rest.targets.push(Target::at_most("cores in use at rest", busy, 1.0));
    Ok(vec![agents, leases, rest])
}
