//! Usage and its cost: as JSON for programs, as CSV for spreadsheets.

use super::extract::{QueryParameters, RequestCaller};
use super::leases::Usage;
use super::problem::Problem;
use super::time::unix_ms;
use crate::billing;
use crate::state::ManagerState as Shared;
use axum::Json;
use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use hotlease_wire::Rejection;
use hotlease_wire::grpc::{BillBy, BillReply, BillRequest, BillRow};
use hotlease_wire::mirror;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::{IntoParams, ToSchema};

const JSON: &str = "application/json";
const CSV: &str = "text/csv";

mirror! {
    /// A row of a bill. Costs are decimal amounts with nine places.
    #[derive(Debug, Serialize, ToSchema)]
    pub(super) struct Row from(row: BillRow) {
        tenant: String,
        /// Batch job, if rows are by job or lease.
        job: String,
        /// Lease, if rows are by lease; so are agent and boot.
        lease: String,
        agent: String,
        boot: String,
        label: String,
        /// Number of leases; 0: leases settled long ago, of which only the tenant's total is kept.
        leases: u64,
        usage: Usage = row.usage.unwrap_or_default().into(),
        /// Memory held, MiB times milliseconds.
        memory_mib_ms: u64,
        /// Cost of allocated time, Ca*ta.
        allocated_cost: String,
        /// Cost of computing time, Cc*tc.
        computing_cost: String,
        /// Cost of polling time, Ch*th.
        hot_cost: String,
        memory_cost: String,
        /// Sum of all costs.
        cost: String,
        /// Function, if rows are by function; empty: usage by no function (allocated and polling time, memory, computing
        /// time of calls that were refused or cut off).
        function: String,
        /// BLAKE3 hash of the function's library; zeros: all functions that are not counted one by one.
        library: String,
    }
}

/// Usage and its cost at the current prices.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Bill {
    rows: Vec<Row>,
    currency: String,
    /// Total cost, a decimal amount with nine places.
    total: String,
    /// Number of ledger rows without a grant, which are not billed.
    disputed: u64,
    /// Time of the bill, milliseconds since 1970.
    as_of_ms: u64,
}

/// Grouping of rows.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Grouping {
    #[default]
    Tenant,
    Job,
    Lease,
    Function,
}

/// Selects usage by tenant, job and time.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct UsageQuery {
    /// Show only this tenant's usage. A caller that is no operator always sees its own tenant's.
    #[param(max_length = 64)]
    tenant: Option<String>,
    /// Show only this job's usage.
    #[param(max_length = 64)]
    job: Option<String>,
    /// Start of the range, RFC 3339; rounded down to a whole hour (default: from the beginning).
    #[param(format = DateTime)]
    since: Option<String>,
    /// End of the range (default: now).
    #[param(format = DateTime)]
    until: Option<String>,
    /// Grouping of the rows (default: tenant).
    #[param(inline)]
    by: Option<Grouping>,
}

/// Reports usage and its cost: `C = Ca*ta + Cc*tc + Ch*th`, and the cost of memory that was held.
#[utoipa::path(get, path = "/v1/usage", operation_id = "get_usage", tag = "usage", params(UsageQuery),
    responses((status = 200, description = "The bill, in the format of the Accept header", content(
        (Bill = "application/json"),
        (String = "text/csv"),
    ))))]
pub(super) async fn usage(
    State(state): State<Arc<Shared>>,
    RequestCaller(caller): RequestCaller,
    QueryParameters(which): QueryParameters<UsageQuery>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let form = preferred_media_type(&headers, &[JSON, CSV]);
    let form = form.ok_or_else(|| Problem::not_acceptable("application/json or text/csv"))?;
    let moment = |name, text: Option<String>| text.map_or(Ok(0), |text| unix_ms(name, &text));
    let request = BillRequest {
        tenant: which.tenant.unwrap_or_default(),
        job: which.job.unwrap_or_default(),
        since_ms: moment("since", which.since)?,
        until_ms: moment("until", which.until)?,
        by: match which.by.unwrap_or_default() {
            Grouping::Tenant => BillBy::Tenant,
            Grouping::Job => BillBy::Job,
            Grouping::Lease => BillBy::Lease,
            Grouping::Function => BillBy::Function,
        }
        .into(),
    };
    let bill = billing::bill(&state, caller.bill(request)?).await?;
    let mut response = match form {
        CSV => {
            let kind = (CONTENT_TYPE, "text/csv; charset=utf-8; header=present");
            ([kind], csv(bill)?).into_response()
        }
        _ => Json(Bill {
            rows: bill.rows.into_iter().map(Row::from).collect(),
            currency: bill.currency,
            total: bill.total,
            disputed: bill.disputed,
            as_of_ms: bill.as_of_ms,
        })
        .into_response(),
    };
    response.headers_mut().insert(VARY, HeaderValue::from_static("accept"));
    Ok(response)
}

/// Escapes text that a spreadsheet would take for a formula, because clients choose texts such as labels.
fn escape_formula(mut text: String) -> String {
    if text.starts_with(['=', '+', '-', '@', '\t', '\r']) {
        text.insert(0, '\'');
    }
    text
}

fn csv(bill: BillReply) -> Result<Vec<u8>, Problem> {
    let failed = |error: &dyn std::fmt::Display| {
        Problem::from(Rejection::Unavailable {
            what: format!("the bill cannot be written: {error}"),
        })
    };
    let mut out = csv::Writer::from_writer(Vec::new());
    let heading = [
        "tenant",
        "job",
        "lease",
        "agent",
        "boot",
        "label",
        "leases",
        "allocated_ns",
        "hot_ns",
        "compute_ns",
        "invocations",
        "memory_mib_ms",
        "allocated_cost",
        "computing_cost",
        "hot_cost",
        "memory_cost",
        "cost",
        "currency",
        "function",
        "library",
    ];
    out.write_record(heading).map_err(|error| failed(&error))?;
    for row in bill.rows {
        let usage = row.usage.unwrap_or_default();
        let cells = [
            escape_formula(row.tenant),
            escape_formula(row.job),
            row.lease,
            row.agent,
            row.boot,
            escape_formula(row.label),
            row.leases.to_string(),
            usage.allocated_ns.to_string(),
            usage.hot_ns.to_string(),
            usage.compute_ns.to_string(),
            usage.invocations.to_string(),
            row.memory_mib_ms.to_string(),
            row.allocated_cost,
            row.computing_cost,
            row.hot_cost,
            row.memory_cost,
            row.cost,
            bill.currency.clone(),
            escape_formula(row.function),
            row.library,
        ];
        out.write_record(cells).map_err(|error| failed(&error))?;
    }
    out.into_inner().map_err(|error| failed(&error))
}

/// Media type that the client prefers; of equally preferred types the first in `offered`.
fn preferred_media_type(headers: &HeaderMap, offered: &[&'static str]) -> Option<&'static str> {
    let accepts: Vec<&str> = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|range| !range.is_empty())
        .collect();
    if accepts.is_empty() {
        return offered.first().copied();
    }
    let weight = |media: &str| {
        let (group, _) = media.split_once('/').unwrap_or((media, ""));
        // The most specific range of the header decides the weight.
        let ranges = accepts.iter().filter_map(|accept| {
            let mut parts = accept.split(';').map(str::trim);
            let range = parts.next()?.to_ascii_lowercase();
            let specific = match range.as_str() {
                "*/*" => 0,
                range if range == media => 2,
                range if range.strip_suffix("/*") == Some(group) => 1,
                _ => return None,
            };
            let quality = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f32>().ok());
            Some((specific, quality.unwrap_or(1.0)))
        });
        let most = ranges.max_by_key(|(specific, _)| *specific);
        most.map_or(0.0, |(_, quality)| quality)
    };
    let mut best = None;
    for media in offered {
        let weight = weight(media);
        if weight > best.map_or(0.0, |(_, best)| best) {
            best = Some((*media, weight));
        }
    }
    best.map(|(media, _)| media)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_is_the_one_that_is_wanted_most() {
        for (accept, form) in [
            (None, Some(JSON)),
            (Some("*/*"), Some(JSON)),
            (Some("text/csv"), Some(CSV)),
            (Some("text/*, application/json;q=0.5"), Some(CSV)),
            (Some("application/json, text/csv;q=0.9"), Some(JSON)),
            (Some("TEXT/CSV; charset=utf-8"), Some(CSV)),
            (Some("text/csv;q=0, */*;q=0.1"), Some(JSON)),
            (Some("image/png"), None),
            (Some("application/json;q=0"), None),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(accept) = accept {
                headers.insert(ACCEPT, accept.parse().expect("a header"));
            }
            assert_eq!(preferred_media_type(&headers, &[JSON, CSV]), form, "{accept:?}");
        }
    }

    #[test]
    fn a_label_is_no_formula() {
        let bill = BillReply {
            rows: vec![BillRow {
                label: "=HYPERLINK(\"evil\")".into(),
                ..BillRow::default()
            }],
            ..BillReply::default()
        };
        let text = String::from_utf8(csv(bill).expect("written")).expect("text");
        assert!(text.contains(",\"'=HYPERLINK(\"\"evil\"\")\","), "{text}");
    }
}
