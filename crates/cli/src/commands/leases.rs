//! `hotlease leases`: a list of leases, and the release of a lease.

use clap::Args;
use hotlease_terminal::exit::CommandError;
use hotlease_terminal::output::Printer;
use hotlease_terminal::platform::{Platform, SiteArgs};
use hotlease_terminal::quantity;
use hotlease_wire::grpc::{LeaseInfo, ListRequest, ReleaseRequest};
use hotlease_wire::mirror;
use hotlease_wire::session::UsageTotals;
use serde::Serialize;

/// List leases, or end one
///
/// With `--json`, prints an object for each lease: id, agent, tenant, label, state (active, ended), epoch,
/// expires_in_ms, cores, gpus, usage {allocated_ns, hot_ns, compute_ns, invocations}, end_reason. With `--release`,
/// prints one object: released (the lease) and usage.
#[derive(Debug, Args)]
pub(crate) struct LeasesArgs {
    /// Also list ended leases, as long as their records are kept
    #[arg(long, short)]
    all: bool,
    /// List leases of this tenant only, such as uid:1000
    #[arg(long)]
    tenant: Option<String>,
    /// End this lease: its id, or the beginning of its id if no other id begins in the same way
    #[arg(long, value_name = "ID", conflicts_with_all = ["all", "tenant"])]
    release: Option<String>,
    #[command(flatten)]
    site: SiteArgs,
}

/// Usage as a part of a sentence.
pub(crate) fn usage_text(usage: &UsageTotals) -> String {
    format!(
        "{} invocations; allocated {}, polling {}, computing {}",
        usage.invocations,
        quantity::nanoseconds(usage.allocated_ns),
        quantity::nanoseconds(usage.hot_ns),
        quantity::nanoseconds(usage.compute_ns),
    )
}

mirror! {
    #[derive(Serialize)]
    struct LeaseRow from(info: LeaseInfo) {
        id: String,
        agent: String,
        tenant: String,
        label: String,
        state: String,
        epoch: u32,
        expires_in_ms: u64,
        cores: Vec<u32>,
        gpus: Vec<u32>,
        usage: UsageTotals = info.usage.into(),
        end_reason: String,
    }
}

#[derive(Serialize)]
struct ReleaseSummary {
    released: String,
    usage: UsageTotals,
}

pub(crate) fn carry_out(args: LeasesArgs, output: &mut Printer) -> anyhow::Result<()> {
    let mut platform = Platform::of(&args.site)?;
    if let Some(id) = args.release {
        return release(&mut platform, &id, output);
    }
    let tenant = args.tenant.unwrap_or_default();
    let list = platform.request(async |client| client.list_leases(ListRequest { tenant }).await)?;
    let mut rows: Vec<LeaseRow> = list.leases.into_iter().map(LeaseRow::from).collect();
    rows.retain(|row| args.all || row.state == "active");
    let columns = "LEASE, STATE, TENANT, LABEL, CORES, >EXPIRES, >CALLS, >ALLOCATED, >POLLING, >COMPUTE";
    output.list(&rows, columns, "no leases", |row| {
        let active = row.state == "active";
        let expires = format!(
            "in {}",
            quantity::nanoseconds(row.expires_in_ms.saturating_mul(1_000_000))
        );
        vec![
            row.id.clone(),
            if active {
                row.state.clone()
            } else {
                format!("{}: {}", row.state, row.end_reason)
            },
            row.tenant.clone(),
            row.label.clone(),
            quantity::cores(&row.cores),
            if active { expires } else { "-".into() },
            row.usage.invocations.to_string(),
            quantity::nanoseconds(row.usage.allocated_ns),
            quantity::nanoseconds(row.usage.hot_ns),
            quantity::nanoseconds(row.usage.compute_ns),
        ]
    })
}

fn release(platform: &mut Platform, beginning: &str, output: &mut Printer) -> anyhow::Result<()> {
    let list = platform.request(async |client| client.list_leases(ListRequest::default()).await)?;
    let lease = find_active_lease(beginning, list.leases)?;
    let request = ReleaseRequest {
        lease: lease.clone(),
        reason: "revoked".into(),
        ..Default::default()
    };
    let reply = platform.request(async |client| client.release(request).await)?;
    let released = ReleaseSummary {
        released: lease,
        usage: reply.usage.into(),
    };
    output.answer(&released, || {
        format!("released {}: {}", released.released, usage_text(&released.usage))
    })
}

/// Id of the only active lease whose id begins with this text.
fn find_active_lease(beginning: &str, leases: Vec<LeaseInfo>) -> anyhow::Result<String> {
    let active = leases.into_iter().filter(|lease| lease.state == "active");
    let mut meant: Vec<String> = active
        .map(|lease| lease.id)
        .filter(|id| id.starts_with(beginning))
        .collect();
    match (meant.pop(), meant.len()) {
        (Some(id), 0) => Ok(id),
        (Some(_), others) => Err(CommandError::Usage(format!(
            "{} active leases begin with `{beginning}`; give more of the id",
            others + 1
        ))
        .into()),
        (None, _) => anyhow::bail!("no active lease begins with `{beginning}`; see `hotlease leases`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_meant_by_an_unambiguous_beginning() {
        let lease = |id: &str, state: &str| LeaseInfo {
            id: id.into(),
            state: state.into(),
            ..Default::default()
        };
        let leases = || vec![lease("aa01", "active"), lease("aa02", "active"), lease("bb01", "ended")];
        assert_eq!(find_active_lease("aa02", leases()).unwrap(), "aa02");
        assert!(find_active_lease("aa", leases()).unwrap_err().is::<CommandError>());
        assert!(
            find_active_lease("bb", leases())
                .unwrap_err()
                .to_string()
                .contains("no active lease")
        );
    }
}
