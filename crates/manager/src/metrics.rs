//! Metrics of the manager, for Prometheus.
//!
//! No label names a tenant, a lease or anything else that a client chooses. Routes, kinds of refusals and states are
//! names of this program, so that the number of series is bounded for all requests.

use crate::refusal_kind::kind_of;
use hotlease_lease::manager::{AgentProfile, AgentState};
use hotlease_wire::Rejection;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;
use std::time::Duration;

/// Buckets from 50 us, as no grant with a durable ledger is faster, to 12.8 s, as no caller waits longer.
const SECONDS: [f64; 17] = [
    0.000_05, 0.000_1, 0.000_2, 0.000_4, 0.000_8, 0.001_6, 0.003_2, 0.006_4, 0.012_8, 0.025_6, 0.051_2, 0.1, 0.2, 0.8,
    3.2, 6.4, 12.8,
];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    interface: &'static str,
    route: String,
    status: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabel {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

/// Metrics and their registry. Counting holds no lock for longer than a map's look-up.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    grants: Counter,
    refusals: Family<RefusalLabel, Counter>,
    grant_seconds: Histogram,
    commit_seconds: Histogram,
    commit_failures: Counter,
    heartbeats: Counter,
    ledger_rows: Counter,
    agents: Family<StateLabel, Gauge>,
    leases: Gauge,
    cores_offered: Gauge,
    cores_free: Gauge,
    uptime: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("hotlease");
        let requests = Family::<RequestLabels, Counter>::default();
        let refusals = Family::<RefusalLabel, Counter>::default();
        let agents = Family::<StateLabel, Gauge>::default();
        let [grants, heartbeats, ledger_rows, commit_failures] = [(); 4].map(|()| Counter::default());
        let [leases, cores_offered, cores_free, uptime] = [(); 4].map(|()| Gauge::default());
        let [grant_seconds, commit_seconds] = [(); 2].map(|()| Histogram::new(SECONDS));
        registry.register(
            "requests",
            "Requests answered, by interface, route and status",
            requests.clone(),
        );
        registry.register("grants", "Leases granted", grants.clone());
        registry.register(
            "refusals",
            "Requests for leases refused, by kind of refusal",
            refusals.clone(),
        );
        let unit = || Unit::Seconds;
        registry.register_with_unit(
            "grant",
            "Time from a request for a lease to its grant, durable in the ledger",
            unit(),
            grant_seconds.clone(),
        );
        registry.register_with_unit(
            "commit",
            "Time of a durable write of the manager",
            unit(),
            commit_seconds.clone(),
        );
        registry.register("commit_failures", "Durable writes that failed", commit_failures.clone());
        registry.register("heartbeats", "Heartbeats received from agents", heartbeats.clone());
        registry.register(
            "ledger_rows_written",
            "Rows merged into the ledger",
            ledger_rows.clone(),
        );
        registry.register("agents", "Agents by state", agents.clone());
        registry.register("leases_active", "Active leases", leases.clone());
        registry.register(
            "cores_offered",
            "Cores that connected agents offer",
            cores_offered.clone(),
        );
        registry.register(
            "cores_free",
            "Cores of connected agents that no lease holds",
            cores_free.clone(),
        );
        registry.register_with_unit("uptime", "Time since the manager started", unit(), uptime.clone());
        Self {
            registry,
            requests,
            grants,
            refusals,
            grant_seconds,
            commit_seconds,
            commit_failures,
            heartbeats,
            ledger_rows,
            agents,
            leases,
            cores_offered,
            cores_free,
            uptime,
        }
    }
}

impl Metrics {
    /// Counts an answered request. `route`: one of this program's names, never a text from the request.
    pub(crate) fn count_request(&self, interface: &'static str, route: String, status: &'static str) {
        let labels = RequestLabels {
            interface,
            route,
            status,
        };
        self.requests.get_or_create(&labels).inc();
    }

    /// Counts a request for a lease, as granted or refused.
    pub(crate) fn count_acquire<T>(&self, took: Duration, outcome: &Result<T, Rejection>) {
        match outcome {
            Ok(_) => {
                self.grants.inc();
                self.grant_seconds.observe(took.as_secs_f64());
            }
            Err(refusal) => {
                let kind = kind_of(refusal);
                self.refusals.get_or_create(&RefusalLabel { kind }).inc();
            }
        }
    }

    /// Counts a write to the store: the rows of the ledger that it merged, or a failure.
    pub(crate) fn count_commit<T, E>(&self, took: Duration, rows: usize, outcome: &Result<T, E>) {
        self.commit_seconds.observe(took.as_secs_f64());
        match outcome {
            Ok(_) => self.ledger_rows.inc_by(rows as u64),
            Err(_) => self.commit_failures.inc(),
        };
    }

    /// Counts a heartbeat of an agent.
    pub(crate) fn count_heartbeat(&self) {
        self.heartbeats.inc();
    }

    /// Sets the numbers of agents and cores. `agents`: each agent, how it is heard, and for how long it has been silent.
    pub(crate) fn set_agents(&self, agents: &[(AgentProfile, AgentState, Duration)]) {
        let (mut counts, mut offered, mut free) = ([0; 3], 0, 0);
        for (record, heard, _) in agents {
            counts[*heard as usize] += 1;
            if *heard != AgentState::Gone {
                offered += record.cores.len() as i64;
                free += i64::from(record.free_cores);
            }
        }
        for (heard, name) in [
            (AgentState::Serving, "serving"),
            (AgentState::Suspected, "suspected"),
            (AgentState::Gone, "gone"),
        ] {
            let gauge = self.agents.get_or_create(&StateLabel { state: name });
            gauge.set(counts[heard as usize]);
        }
        self.cores_offered.set(offered);
        self.cores_free.set(free);
    }

    /// Sets the time since the manager started.
    pub(crate) fn set_uptime(&self, uptime: Duration) {
        self.uptime.set(uptime.as_secs() as i64);
    }

    /// All metrics as text. `active`: number of leases that go on.
    pub(crate) fn text(&self, active: u64) -> Result<String, Rejection> {
        self.leases.set(active as i64);
        let mut text = String::new();
        // Writing to a string fails only if the encoding of a metric fails.
        text::encode(&mut text, &self.registry).map_err(|fmt::Error| Rejection::Unavailable {
            what: "the metrics cannot be written".into(),
        })?;
        Ok(text)
    }
}
