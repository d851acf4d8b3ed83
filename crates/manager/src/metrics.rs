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
use prometheus_client::registry::{Metric, Registry, Unit};
use std::fmt;
use std::time::Duration;

/// Buckets from 50 us (no grant with a durable ledger is faster) to 12.8 s (no caller waits longer).
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

/// Adds a metric of this name and description to the registry.
fn register<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

/// Adds a metric that is measured in seconds.
fn register_seconds<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register_with_unit(name, help, Unit::Seconds, metric.clone());
    metric
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("hotlease");
        let all = &mut registry;
        let (counter, gauge, histogram) = (Counter::default, Gauge::default, || Histogram::new(SECONDS));
        let requests = "Requests answered, by interface, route and status";
        let refusals = "Requests for leases refused, by kind of refusal";
        let granted = "Time from a request for a lease to its grant, durable in the ledger";
        let committed = "Time of a durable write of the manager";
        let offered = "Cores that connected agents offer";
        let free = "Cores of connected agents that no lease holds";
        Self {
            requests: register(all, "requests", requests, Family::default()),
            grants: register(all, "grants", "Leases granted", counter()),
            refusals: register(all, "refusals", refusals, Family::default()),
            grant_seconds: register_seconds(all, "grant", granted, histogram()),
            commit_seconds: register_seconds(all, "commit", committed, histogram()),
            commit_failures: register(all, "commit_failures", "Durable writes that failed", counter()),
            heartbeats: register(all, "heartbeats", "Heartbeats received from agents", counter()),
            ledger_rows: register(all, "ledger_rows_written", "Rows merged into the ledger", counter()),
            agents: register(all, "agents", "Agents by state", Family::default()),
            leases: register(all, "leases_active", "Active leases", gauge()),
            cores_offered: register(all, "cores_offered", offered, gauge()),
            cores_free: register(all, "cores_free", free, gauge()),
            uptime: register_seconds(all, "uptime", "Time since the manager started", gauge()),
            registry,
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

    /// Sets the numbers of agents and cores. `agents`: each agent, its state, and the time for which it has been
    /// silent.
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

    /// All metrics as text. `active`: number of running leases.
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
