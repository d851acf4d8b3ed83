//! `hotlease admin tenant`: tenants, their members and quotas.

use anyhow::bail;
use clap::{Args, Subcommand};
use hotlease_terminal::output::Printer;
use hotlease_terminal::platform::{Platform, SiteArgs};
use hotlease_terminal::quantity;
use hotlease_wire::grpc::{ListTenantsRequest, PutTenantRequest, RemoveTenantRequest, Tenant};
use hotlease_wire::mirror;
use serde::Serialize;
use std::str::FromStr;

/// Manage tenants, their members and quotas
///
/// Members are users of the manager's host and of a MUNGE cluster (uid:1000), tenants of certificates (cert:alice)
/// and subjects of tokens (jwt:alice@example.org; at a site with several issuers
/// jwt:https://login.example.org/#alice@example.org). With `--json`, prints an object for each tenant: name, enabled,
/// role, quotas (cores, leases, memory_bytes, gpus, core_seconds, window_hours; null: no bound), members, and the
/// current use: held_leases, held_cores, held_memory_bytes, held_gpus, used_core_seconds.
#[derive(Debug, Args)]
pub(crate) struct TenantArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Add a tenant
    Add(AddArgs),
    /// Change a tenant; options that are left out stay as they are
    Set(SetArgs),
    /// List the tenants that were added
    List(ListArgs),
    /// Show one tenant
    Show(NameArgs),
    /// Remove a tenant and its keys; its leases go on, its bills stay
    Remove(NameArgs),
}

#[derive(Debug, Args)]
struct ListArgs {
    #[command(flatten)]
    site: SiteArgs,
}

#[derive(Debug, Args)]
struct NameArgs {
    /// Name of the tenant
    name: String,
    #[command(flatten)]
    site: SiteArgs,
}

/// A bound, or none.
#[derive(Debug, Clone, Copy)]
struct Bound<T>(Option<T>);

impl<T: FromStr> FromStr for Bound<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self(None)),
            text => text
                .parse()
                .map(|bound| Self(Some(bound)))
                .map_err(|_| "a number, or none".into()),
        }
    }
}

fn bytes(text: &str) -> Result<Bound<u64>, String> {
    match text {
        "none" => Ok(Bound(None)),
        text => Ok(Bound(Some(quantity::parse_bytes(text)? as u64))),
    }
}

#[derive(Debug, Args)]
struct QuotaArgs {
    /// Role of its members: user, operator or hook (the batch system's scripts)
    #[arg(long, value_parser = ["user", "operator", "hook"])]
    role: Option<String>,
    /// Largest number of cores at the same time, or `none` for no bound
    #[arg(long, value_name = "N")]
    cores: Option<Bound<u64>>,
    /// Largest number of leases at the same time
    #[arg(long, value_name = "N")]
    leases: Option<Bound<u64>>,
    /// Largest amount of memory that its leases may request at the same time, such as 64G; each lease must then request
    /// a bound
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    memory: Option<Bound<u64>>,
    /// Largest number of GPUs at the same time
    #[arg(long, value_name = "N")]
    gpus: Option<Bound<u64>>,
    /// Largest number of core-seconds by the ledger; a tenant that has used them gets no new lease
    #[arg(long, value_name = "N")]
    core_seconds: Option<Bound<u64>>,
    /// Hours up to now over which core-seconds are counted; none: since the beginning
    #[arg(long, value_name = "N")]
    window_hours: Option<Bound<u32>>,
    /// Member of the tenant: uid:N, cert:NAME, jwt:SUBJECT or jwt:ISSUER#SUBJECT; may be given more than once
    #[arg(long = "member", value_name = "WHO")]
    members: Vec<String>,
    #[command(flatten)]
    site: SiteArgs,
}

#[derive(Debug, Args)]
struct AddArgs {
    /// Name of the tenant, as in certificates; or uid:N for one user
    name: String,
    #[command(flatten)]
    quota: QuotaArgs,
}

#[derive(Debug, Args)]
struct SetArgs {
    /// Name of the tenant
    name: String,
    /// Serve this tenant no longer; its running leases go on
    #[arg(long, conflicts_with = "enable")]
    disable: bool,
    /// Serve this tenant again
    #[arg(long)]
    enable: bool,
    /// Member to remove; may be given more than once
    #[arg(long = "without", value_name = "WHO")]
    without: Vec<String>,
    #[command(flatten)]
    quota: QuotaArgs,
}

impl QuotaArgs {
    fn change(self, tenant: &mut Tenant) {
        let set = |place: &mut Option<u64>, bound: Option<Bound<u64>>| {
            if let Some(Bound(bound)) = bound {
                *place = bound;
            }
        };
        set(&mut tenant.cores, self.cores);
        set(&mut tenant.leases, self.leases);
        set(&mut tenant.memory_bytes, self.memory);
        set(&mut tenant.gpus, self.gpus);
        set(&mut tenant.core_seconds, self.core_seconds);
        if let Some(Bound(hours)) = self.window_hours {
            tenant.window_hours = hours;
        }
        if let Some(role) = self.role {
            tenant.role = role;
        }
        tenant.members.extend(self.members);
    }
}

mirror! {
    #[derive(Serialize)]
    struct TenantRow from(tenant: Tenant) {
        name: String,
        enabled: bool,
        role: String,
        cores: Option<u64>,
        leases: Option<u64>,
        memory_bytes: Option<u64>,
        gpus: Option<u64>,
        core_seconds: Option<u64>,
        window_hours: Option<u32>,
        members: Vec<String>,
        held_leases: u64,
        held_cores: u64,
        held_memory_bytes: u64,
        held_gpus: u64,
        used_core_seconds: u64,
    }
}

/// `3 of 8`, or `3` if there is no bound.
fn held_of_bound(held: u64, bound: Option<u64>) -> String {
    match bound {
        Some(bound) => format!("{held} of {bound}"),
        None => held.to_string(),
    }
}

impl TenantRow {
    fn text(&self) -> String {
        let state = if self.enabled { "" } else { ", disabled" };
        let mut lines = vec![
            format!("{} ({}{state})", self.name, self.role),
            format!("  leases        {}", held_of_bound(self.held_leases, self.leases)),
            format!("  cores         {}", held_of_bound(self.held_cores, self.cores)),
            format!(
                "  memory, bytes {}",
                held_of_bound(self.held_memory_bytes, self.memory_bytes)
            ),
        ];
        if let Some(gpus) = self.gpus {
            lines.push(format!("  GPUs          at most {gpus}"));
        }
        if self.core_seconds.is_some() {
            let window = self
                .window_hours
                .map_or_else(|| "since the beginning".into(), |hours| format!("in {hours} h"));
            lines.push(format!(
                "  core-seconds  {} {window}",
                held_of_bound(self.used_core_seconds, self.core_seconds)
            ));
        }
        if !self.members.is_empty() {
            lines.push(format!("  members       {}", self.members.join(", ")));
        }
        lines.join("\n")
    }
}

fn known(platform: &mut Platform, name: &str) -> anyhow::Result<Tenant> {
    let request = ListTenantsRequest { name: name.into() };
    let list = platform.request(async |client| client.list_tenants(request).await)?;
    match list.tenants.into_iter().next() {
        Some(tenant) => Ok(tenant),
        None => bail!("the manager knows no tenant {name}"),
    }
}

fn put(platform: &mut Platform, tenant: Tenant, is_new: bool, output: &mut Printer) -> anyhow::Result<()> {
    let request = PutTenantRequest {
        tenant: Some(tenant),
        is_new,
    };
    let row = TenantRow::from(platform.request(async |client| client.put_tenant(request).await)?);
    output.answer(&row, || row.text())
}

pub(crate) fn carry_out(args: TenantArgs, output: &mut Printer) -> anyhow::Result<()> {
    match args.command {
        Command::Add(args) => {
            let mut platform = Platform::of(&args.quota.site)?;
            let mut tenant = Tenant {
                name: args.name,
                enabled: true,
                role: "user".into(),
                ..Tenant::default()
            };
            args.quota.change(&mut tenant);
            put(&mut platform, tenant, true, output)
        }
        Command::Set(args) => {
            let mut platform = Platform::of(&args.quota.site)?;
            let mut tenant = known(&mut platform, &args.name)?;
            if args.enable || args.disable {
                tenant.enabled = args.enable;
            }
            tenant.members.retain(|member| !args.without.contains(member));
            args.quota.change(&mut tenant);
            put(&mut platform, tenant, false, output)
        }
        Command::Show(args) => {
            let row = TenantRow::from(known(&mut Platform::of(&args.site)?, &args.name)?);
            output.answer(&row, || row.text())
        }
        Command::List(args) => {
            let mut platform = Platform::of(&args.site)?;
            let list = platform.request(async |client| client.list_tenants(ListTenantsRequest::default()).await)?;
            let rows: Vec<TenantRow> = list.tenants.into_iter().map(TenantRow::from).collect();
            let columns = "TENANT, ROLE, STATE, >LEASES, >CORES, MEMBERS";
            output.list(&rows, columns, "no tenant was named", |row| {
                vec![
                    row.name.clone(),
                    row.role.clone(),
                    if row.enabled { "enabled" } else { "disabled" }.into(),
                    held_of_bound(row.held_leases, row.leases),
                    held_of_bound(row.held_cores, row.cores),
                    row.members.join(", "),
                ]
            })
        }
        Command::Remove(args) => {
            let mut platform = Platform::of(&args.site)?;
            let row = TenantRow::from(known(&mut platform, &args.name)?);
            let request = RemoveTenantRequest { name: args.name };
            platform.request(async |client| client.remove_tenant(request).await)?;
            output.answer(&row, || format!("tenant {} and its keys are removed", row.name))
        }
    }
}
