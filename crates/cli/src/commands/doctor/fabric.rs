//! Checks of the transports: libfabric and its providers on this host, and with `--peer` a trial of each
//! towards an agent, through short leases.

use super::Finding;
use hotlease_client::{Code, Error, Invoker, LeaseOptions};
use hotlease_fabric::clock::median;
use hotlease_fabric::ofi::Libfabric;
use hotlease_fabric::ofi::providers::{Addressing, PROVIDERS, Quirks, TestStatus, find_provider};
use hotlease_terminal::functions::functions;
use hotlease_terminal::platform::SiteArgs;
use hotlease_terminal::quantity;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) const CHECKS: &[fn() -> Vec<Finding>] = &[library];

const ROUND_TRIPS: usize = 200;
const LARGE_BYTES: usize = 1 << 20;
/// A call that takes longer counts as lost.
const CALL_LIMIT: Duration = Duration::from_secs(5);
const ONLY_SHM: &str = "workers of this host are reached through shared memory, others not at all: install libfabric1, or set \
     HOTLEASE_LIBFABRIC";

/// Checks whether libfabric can be loaded.
fn library() -> Vec<Finding> {
    const CHECK: &str = "libfabric";
    vec![match Libfabric::load() {
        Ok(library) => {
            let (major, minor) = library.version();
            Finding::ok(CHECK, format!("{major}.{minor}, {}", library.path().display()))
        }
        Err(error) => Finding::warn(CHECK, format!("none: {error}; only shm is available"), ONLY_SHM),
    }]
}

/// Checks of `--peer`: each provider of the table, and which of them reach the manager's agents.
pub(super) fn peer(args: &SiteArgs, mut tell: impl FnMut(Finding) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let library = Libfabric::load().ok();
    let remote = match args.site() {
        Ok(site) => site.is_some(),
        // The check of the identity reports this error.
        Err(_) => return Ok(()),
    };
    // The loopback address reaches workers on this host.
    let source = (!remote).then_some(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let mut usable = Vec::new();
    if let Some(library) = &library {
        for quirks in PROVIDERS {
            let (finding, works) = provider(library, quirks, source);
            tell(finding)?;
            if works && quirks.addressing != Addressing::Node {
                usable.push(quirks.name);
            }
        }
    }
    let code = match functions() {
        Ok(code) => code,
        Err(error) => {
            let advice = "without them no transport can be tried";
            return tell(Finding::warn("transport", format!("{error:#}"), advice));
        }
    };
    let chosen = try_out(args, &code, None);
    let stop = matches!(chosen, Err(ref error) if !is_about_transport(error));
    tell(match &chosen {
        Ok(tried) => {
            let why = match (std::env::var("HOTLEASE_TRANSPORT"), tried.transport.as_str()) {
                (Ok(name), _) if !name.is_empty() => format!("HOTLEASE_TRANSPORT is {name}"),
                (_, "shm") => "the worker is on this host".to_owned(),
                _ => "the first of the providers above that gets through".to_owned(),
            };
            Finding::ok(
                "transport",
                format!("would be {}: {why}; {}", tried.transport, tried.figures()),
            )
        }
        Err(error) => Finding::warn("transport", format!("none: {error}"), "see the other checks"),
    })?;
    if stop {
        return Ok(());
    }
    for name in usable {
        let finding = match try_out(args, &code, Some(name)) {
            Ok(tried) => Finding::ok("transport", format!("{name} gets through: {}", tried.figures())),
            Err(error) => Finding::warn("transport", format!("{name} does not get through: {error}"), NOT_THIS),
        };
        tell(finding)?;
    }
    Ok(())
}

const NOT_THIS: &str = "another is used; a firewall between the hosts, or an interface that leads elsewhere?";

fn is_about_transport(error: &Error) -> bool {
    matches!(error, Error::NoTransport { .. })
}

/// Finding for a provider of the table, and whether it can be used here.
fn provider(library: &Arc<Libfabric>, quirks: &Quirks, source: Option<IpAddr>) -> (Finding, bool) {
    const CHECK: &str = "provider";
    let tested = match quirks.tested {
        TestStatus::Conformance => "passes the conformance suite",
        TestStatus::Untested => "never tried on such hardware",
    };
    match find_provider(library, quirks.name, source) {
        Ok(found) => {
            let place = found.domain();
            let finding = match quirks.addressing {
                Addressing::Node => Finding::note(
                    CHECK,
                    format!("{} is there, but never chosen: {}", quirks.name, quirks.trouble),
                ),
                _ => Finding::ok(
                    CHECK,
                    format!("{} usable on {place}; {tested}; known: {}", quirks.name, quirks.trouble),
                ),
            };
            (finding, true)
        }
        // A host without such an adapter is not faulty.
        Err(error) => {
            let what = format!("{} not usable ({tested}): {error}", quirks.name);
            (Finding::note(CHECK, what), false)
        }
    }
}

/// Measurements of a short lease.
struct TrialTimes {
    transport: String,
    round_trip: Duration,
    bytes_per_second: f64,
}

impl TrialTimes {
    fn figures(&self) -> String {
        format!(
            "round trip {}, {} in and out at {:.2} GB/s",
            quantity::nanoseconds(self.round_trip.as_nanos() as u64),
            quantity::bytes(LARGE_BYTES as u64),
            self.bytes_per_second / 1e9
        )
    }
}

fn try_out(args: &SiteArgs, code: &Code, transport: Option<&str>) -> Result<TrialTimes, Error> {
    let options = LeaseOptions {
        transport: transport.map(str::to_owned),
        manager: args.manager.clone(),
        identity: args.identity.clone(),
        credential: args.credential(),
        authority: args.ca_file.clone(),
        timeout: Some(CALL_LIMIT),
        replace_lease: false,
        label: "hotlease doctor".into(),
        ..LeaseOptions::default()
    };
    let invoker = Invoker::allocate(code, options)?;
    let echo = invoker.function("echo")?;
    let mut times = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let begin = Instant::now();
        echo.invoke(&[7; 8], &mut [0; 8])?;
        times.push(begin.elapsed().as_secs_f64());
    }
    let (input, mut output) = (vec![7; LARGE_BYTES], vec![0; LARGE_BYTES]);
    echo.invoke(&input, &mut output)?;
    let begin = Instant::now();
    echo.invoke(&input, &mut output)?;
    let took = begin.elapsed();
    let tried = TrialTimes {
        transport: invoker.transport().to_owned(),
        round_trip: Duration::from_secs_f64(median(&times)),
        bytes_per_second: 2.0 * LARGE_BYTES as f64 / took.as_secs_f64(),
    };
    invoker.deallocate()?;
    Ok(tried)
}
