//! Health, readiness and metrics of the manager.
//!
//! The manager answers only once it has read its durable state, and restored agents and leases from it. Only writing
//! can fail later, so readiness is checked by a write: it must become durable, and PostgreSQL refuses it if another
//! manager leads the database.

use super::problem::Problem;
use crate::state::ManagerState as Shared;
use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, StatusCode};
use axum::response::IntoResponse;
use hotlease_store::StoreError;
use serde::Serialize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use utoipa::ToSchema;

/// Time limit for a write of a manager that is ready.
const WRITTEN_WITHIN: Duration = Duration::from_secs(2);
/// Lifetime of a result: frequent requests cause no further writes.
const FRESH: Duration = Duration::from_secs(1);
/// Content type of OpenMetrics, which Prometheus reads.
const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Answer of a manager that is alive.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Alive {
    /// Always `alive`.
    status: &'static str,
}

/// Readiness of the manager, with the reasons if it is not ready.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Ready {
    ready: bool,
    checks: Vec<Check>,
}

/// Condition that a manager needs to serve.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Check {
    /// `store`: the manager can write its state in time. `leader`: no other manager leads the database. `running`:
    /// the manager was not told to stop.
    name: &'static str,
    passed: bool,
    /// Reason for the failure; empty: the check passed.
    why: String,
}

impl Check {
    fn of(name: &'static str, why: Option<String>) -> Self {
        Self {
            name,
            passed: why.is_none(),
            why: why.unwrap_or_default(),
        }
    }
}

/// Result of the last probe write.
#[derive(Debug, Clone)]
enum ProbeResult {
    Yes,
    No { why: String, is_deposed: bool },
}

#[derive(Default)]
struct Probe {
    /// Start of the probe that is under way, if one is.
    since: Option<Instant>,
    last: Option<(Instant, ProbeResult)>,
}

/// Whether the store can be written. One probe write runs at a time, however many callers ask.
#[derive(Default)]
pub(crate) struct Readiness(Mutex<Probe>);

impl Readiness {
    fn probe(&self) -> MutexGuard<'_, Probe> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn written(&self, state: &Arc<Shared>) -> ProbeResult {
        let until = Instant::now() + WRITTEN_WITHIN;
        let begins = {
            let mut probe = self.probe();
            if let Some((when, written)) = &probe.last
                && when.elapsed() < FRESH
            {
                return written.clone();
            }
            let begins = probe.since.is_none();
            if begins {
                probe.since = Some(Instant::now());
            }
            begins
        };
        if begins {
            let state = Arc::clone(state);
            // The write continues when no caller waits any more: while a thread hangs on a disk, no second one is
            // started.
            tokio::task::spawn_blocking(move || {
                let written = match state.config.store.probe() {
                    Ok(()) => ProbeResult::Yes,
                    Err(error) => ProbeResult::No {
                        is_deposed: matches!(error, StoreError::OtherLeader { .. }),
                        why: error.to_string(),
                    },
                };
                let mut probe = state.readiness.probe();
                probe.since = None;
                probe.last = Some((Instant::now(), written));
            });
        }
        loop {
            tokio::time::sleep(Duration::from_millis(2)).await;
            let probe = self.probe();
            match (probe.since, &probe.last) {
                (None, Some((_, written))) => return written.clone(),
                (Some(since), _) if Instant::now() >= until => {
                    let ms = since.elapsed().as_millis();
                    let why = format!("a write has taken {ms} ms so far");
                    return ProbeResult::No { why, is_deposed: false };
                }
                _ => {}
            }
        }
    }
}

/// Tells that the manager is alive. Open to everybody; the answer says nothing else.
#[utoipa::path(get, path = "/healthz", operation_id = "is_alive", tag = "manager", security(()),
    responses((status = 200, description = "The manager is alive", body = Alive)))]
pub(super) async fn alive() -> Json<Alive> {
    Json(Alive { status: "alive" })
}

/// Tells whether the manager is ready to serve.
#[utoipa::path(get, path = "/readyz", operation_id = "is_ready", tag = "manager",
    responses(
        (status = 200, description = "The manager serves", body = Ready),
        (status = 503, description = "The manager does not serve", body = Ready),
    ))]
pub(super) async fn ready(State(state): State<Arc<Shared>>) -> (StatusCode, Json<Ready>) {
    let written = state.readiness.written(&state).await;
    let (mut store, mut leader) = (None, None);
    if let ProbeResult::No { why, is_deposed } = written {
        match is_deposed {
            true => leader = Some(why),
            false => store = Some(why),
        }
    }
    let stops = *state.asked_to_stop.borrow();
    let running = stops.then(|| "it was told to stop".to_owned());
    let checks = vec![
        Check::of("store", store),
        Check::of("leader", leader),
        Check::of("running", running),
    ];
    let ready = checks.iter().all(|check| check.passed);
    let status = match ready {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, Json(Ready { ready, checks }))
}

/// Metrics for Prometheus: requests, grants, refusals, latencies, agents, cores, leases.
#[utoipa::path(get, path = "/metrics", operation_id = "get_metrics", tag = "manager",
    responses((status = 200, description = "Metrics, as OpenMetrics text",
        body = String, content_type = "application/openmetrics-text")))]
pub(super) async fn metrics(State(state): State<Arc<Shared>>) -> Result<impl IntoResponse, Problem> {
    let text = state.metrics.text(&state).await?;
    let kind: (HeaderName, &str) = (CONTENT_TYPE, METRICS);
    Ok(([kind], text))
}
