//! `hotlease identity`: a site's authority and the identities that it issues.

use clap::{Args, Subcommand};
use hotlease_net::authority::{self, IDENTITY_DAYS_DEFAULT, IdentityRequest};
use hotlease_net::{CertificateInfo, CertificateRole, Identity};
use hotlease_terminal::output::Printer;
use serde::Serialize;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// Make a site's authority, issue identities, show one
///
/// Manager, agents and clients on different hosts authenticate each other by certificates of one authority, which the
/// site's operator keeps: `init` makes the authority, `issue` makes folders to hand out. A daemon reads its folder
/// again when the certificate there is replaced. With `--json`, `show` prints an object: dir, role, name, tenant (or
/// null), hosts, not_before and not_after (seconds since 1970), valid; `init` and `issue` print an object with dir.
#[derive(Debug, Args)]
pub(crate) struct IdentityArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make an authority, once for a site; a person with its folder can issue any identity
    Init {
        /// A new folder, readable by the operator only
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
    },
    /// Issue an identity: a folder with ca.pem, cert.pem and key.pem
    Issue(IssueArgs),
    /// Show an identity and its validity
    Show {
        /// Folder of the identity [default: $HOTLEASE_IDENTITY, or hotlease/identity in the configuration
        /// directory]
        #[arg(long, value_name = "DIR")]
        identity: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
struct IssueArgs {
    /// Folder of the authority
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Role of the holder: manager, agent or client
    #[arg(long)]
    role: CertificateRole,
    /// Tenant that pays for a client's leases; for an agent: the tenant that it serves by default
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Name or address under which other hosts reach a manager or agent; may be given more than once
    #[arg(long = "host", value_name = "NAME_OR_IP")]
    hosts: Vec<String>,
    /// Number of days for which the identity is valid
    #[arg(long, value_name = "N", default_value_t = IDENTITY_DAYS_DEFAULT)]
    days: u32,
    /// A new folder for the identity
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

#[derive(Serialize)]
struct MadeFolder {
    dir: PathBuf,
}

#[derive(Serialize)]
struct IdentityRow {
    dir: PathBuf,
    role: &'static str,
    name: String,
    tenant: Option<String>,
    hosts: Vec<String>,
    not_before: i64,
    not_after: i64,
    valid: bool,
}

impl IdentityRow {
    fn of(dir: PathBuf, described: CertificateInfo) -> Self {
        let now = now();
        Self {
            dir,
            role: described.peer.role.name(),
            name: described.peer.name,
            tenant: described.peer.tenant,
            hosts: described.peer.hosts,
            valid: (described.not_before..=described.not_after).contains(&now),
            not_before: described.not_before,
            not_after: described.not_after,
        }
    }

    fn text(&self) -> String {
        let mut lines = vec![format!("{} {}", self.role, self.name)];
        if let Some(tenant) = &self.tenant {
            lines.push(format!("  tenant   {tenant}"));
        }
        if !self.hosts.is_empty() {
            lines.push(format!("  hosts    {}", self.hosts.join(", ")));
        }
        lines.push(format!("  validity {}", validity(self.not_before, self.not_after)));
        lines.push(format!("  folder   {}", self.dir.display()));
        lines.join("\n")
    }
}

pub(crate) fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}

/// Text about a validity between these times, as of now.
pub(crate) fn validity(not_before: i64, not_after: i64) -> String {
    const HOUR: i64 = 3600;
    let span = |seconds: i64| match seconds / HOUR {
        0 => format!("{} minutes", seconds / 60),
        hours @ 1..48 => format!("{hours} hours"),
        hours => format!("{} days", hours / 24),
    };
    let now = now();
    if now < not_before {
        return format!("begins in {}; compare the clocks", span(not_before - now));
    }
    if now > not_after {
        return format!(
            "ended {} ago; issue a new one with `hotlease identity issue`",
            span(now - not_after)
        );
    }
    format!("ends in {}", span(not_after - now))
}

pub(crate) fn carry_out(args: IdentityArgs, output: &mut Printer) -> anyhow::Result<()> {
    match args.command {
        Command::Init { dir } => {
            authority::init(&dir)?;
            let made = MadeFolder { dir };
            output.answer(&made, || {
                format!(
                    "an authority is in {dir}; keep it where only the site's operator can read it\n\
                     next: hotlease identity issue --dir {dir} --role manager --host NAME --out manager",
                    dir = made.dir.display()
                )
            })
        }
        Command::Issue(args) => {
            let request = IdentityRequest {
                tenant: args.tenant,
                hosts: args.hosts,
                days: args.days,
                ..IdentityRequest::new(args.role)
            };
            authority::issue(&args.dir, &request, &args.out)?;
            let described = Identity::load(&args.out)?.described();
            let shown = IdentityRow::of(args.out, described);
            output.answer(&shown, || shown.text())
        }
        Command::Show { identity } => {
            let dir = identity.map_or_else(Identity::default_dir, Ok)?;
            let described = Identity::load(&dir)?.described();
            let shown = IdentityRow::of(dir, described);
            output.answer(&shown, || shown.text())
        }
    }
}
