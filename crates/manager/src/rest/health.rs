//! Health, readiness and metrics of the manager.
//!
//! The manager answers only once it has read its durable state, and restored agents and leases from it. Only writing
//! can fail later, so readiness is checked by a write: it must become durable, and PostgreSQL refuses it if another
//! manager leads the database.

use super::problem::Problem;
use crate::state::ManagerState as Shared;
use crate::state::readiness::ProbeResult;
use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, StatusCode};
use axum::response::IntoResponse;
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;

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
    let written = state.readiness.written(&state.config.store).await;
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
    state.metrics.set_agents(&state.agents());
    state.metrics.set_uptime(state.now());
    let active = state.store(|store| store.active_leases()).await?;
    let text = state.metrics.text(active)?;
    let kind: (HeaderName, &str) = (CONTENT_TYPE, METRICS);
    Ok(([kind], text))
}
