//! `hotlease admin key`: keys for programs without a certificate.

use anyhow::Context;
use clap::{Args, Subcommand};
use hotlease_terminal::output::Printer;
use hotlease_terminal::platform::{Platform, SiteArgs};
use hotlease_terminal::quantity::parse_time;
use hotlease_wire::grpc::{AddKeyRequest, KeyInfo, ListKeysRequest, RevokeKeyRequest, RotateKeyRequest};
use hotlease_wire::mirror;
use serde::Serialize;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Manage keys, which identify programs without a certificate
///
/// The bearer of a key acts for the key's tenant. A manager on another host accepts keys with `hotlease manager
/// --without-certificate`. With `--json`, prints an object for each key: id, tenant, role, label, created_ms,
/// expires_ms, revoked_ms, used_ms (0: never), state; `add` also prints file, or secret without `--out`.
#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a key; its secret is shown only once
    Add(AddArgs),
    /// List keys, without their secrets
    List(ListArgs),
    /// Make a key invalid
    Revoke(RevokeArgs),
    /// Replace the key of the manager's session tokens; issued tokens stay valid until they expire
    Rotate(RotateArgs),
}

#[derive(Debug, Args)]
struct AddArgs {
    /// Tenant for which the bearer of the key acts; see `hotlease admin tenant`
    #[arg(long, value_name = "NAME")]
    tenant: String,
    /// Role of the key's bearer: user, operator or hook
    #[arg(long, default_value = "user", value_parser = ["user", "operator", "hook"])]
    role: String,
    /// A note, such as the host that uses the key
    #[arg(long, default_value = "")]
    label: String,
    /// How long the key is valid, such as 12h or 30d [default: until it is revoked]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    expires: Option<Duration>,
    /// A new file for the secret, readable by you only [default: print it]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    site: SiteArgs,
}

#[derive(Debug, Args)]
struct ListArgs {
    /// List keys of this tenant only
    #[arg(long, value_name = "NAME", default_value = "")]
    tenant: String,
    #[command(flatten)]
    site: SiteArgs,
}

#[derive(Debug, Args)]
struct RevokeArgs {
    /// Id of the key
    id: String,
    #[command(flatten)]
    site: SiteArgs,
}

#[derive(Debug, Args)]
struct RotateArgs {
    #[command(flatten)]
    site: SiteArgs,
}

mirror! {
    #[derive(Serialize)]
    struct KeyRow from(key: KeyInfo) {
        id: String,
        tenant: String,
        role: String,
        label: String,
        created_ms: u64,
        expires_ms: u64,
        revoked_ms: u64,
        used_ms: u64,
        state: &'static str = state(key.revoked_ms, key.expires_ms),
        #[serde(skip_serializing_if = "Option::is_none")]
        file: Option<PathBuf> = None,
        #[serde(skip_serializing_if = "Option::is_none")]
        secret: Option<String> = None,
    }
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

fn state(revoked_ms: u64, expires_ms: u64) -> &'static str {
    match (revoked_ms, expires_ms) {
        (0, 0) => "good",
        (0, expires) if now_ms() < expires => "good",
        (0, _) => "expired",
        _ => "revoked",
    }
}

fn ago(then_ms: u64) -> String {
    match now_ms().saturating_sub(then_ms) / 60_000 {
        _ if then_ms == 0 => "never".into(),
        minutes @ 0..120 => format!("{minutes} min ago"),
        minutes @ 120..2880 => format!("{} h ago", minutes / 60),
        minutes => format!("{} days ago", minutes / 1440),
    }
}

#[derive(Serialize)]
struct RotationSummary {
    former_ends_ms: u64,
    agents: u32,
    missed: Vec<String>,
}

pub(crate) fn carry_out(args: KeyArgs, output: &mut Printer) -> anyhow::Result<()> {
    match args.command {
        Command::Add(args) => add(args, output),
        Command::List(args) => {
            let mut platform = Platform::of(&args.site)?;
            let request = ListKeysRequest { tenant: args.tenant };
            let list = platform.request(async |client| client.list_keys(request).await)?;
            let rows: Vec<KeyRow> = list.keys.into_iter().map(KeyRow::from).collect();
            let columns = "KEY, TENANT, ROLE, STATE, LABEL, USED";
            output.list(&rows, columns, "there are no keys", |row| {
                vec![
                    row.id.clone(),
                    row.tenant.clone(),
                    row.role.clone(),
                    row.state.into(),
                    row.label.clone(),
                    ago(row.used_ms),
                ]
            })
        }
        Command::Revoke(args) => {
            let mut platform = Platform::of(&args.site)?;
            let request = RevokeKeyRequest { id: args.id };
            let row = KeyRow::from(platform.request(async |client| client.revoke_key(request).await)?);
            output.answer(&row, || format!("key {} of {} is revoked", row.id, row.tenant))
        }
        Command::Rotate(args) => {
            let mut platform = Platform::of(&args.site)?;
            let reply = platform.request(async |client| client.rotate_key(RotateKeyRequest {}).await)?;
            let rotated = RotationSummary {
                former_ends_ms: reply.former_ends_ms,
                agents: reply.agents,
                missed: reply.missed,
            };
            output.answer(&rotated, || {
                let mut told = format!(
                    "new tokens have a new key: of sessions with the manager, and of leases of {} agents",
                    rotated.agents
                );
                for missed in &rotated.missed {
                    told.push_str("\nmissed: ");
                    told.push_str(missed);
                }
                told
            })
        }
    }
}

fn add(args: AddArgs, output: &mut Printer) -> anyhow::Result<()> {
    let mut platform = Platform::of(&args.site)?;
    // The file is made before the key: a secret that cannot be written would be lost.
    let file = args.out.as_ref().map(|path| {
        let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        opened.with_context(|| format!("cannot make {}", path.display()))
    });
    let file = file.transpose()?;
    let request = AddKeyRequest {
        tenant: args.tenant,
        role: args.role,
        label: args.label,
        // 0 would mean no expiry.
        lasts_ms: args.expires.map_or(0, |time| (time.as_millis() as u64).max(1)),
    };
    let made = platform.request(async |client| client.add_key(request).await);
    let made = match (made, &args.out) {
        (Err(error), Some(path)) => {
            // The file is this process's own, and empty.
            let _ = fs::remove_file(path);
            return Err(error);
        }
        (made, _) => made?,
    };
    let mut row = KeyRow::from(made.key.unwrap_or_default());
    match (file, args.out) {
        (Some(mut file), Some(path)) => {
            let written = writeln!(file, "{}", made.secret).and_then(|()| file.sync_all());
            written.with_context(|| format!("cannot write {}; revoke key {}", path.display(), row.id))?;
            row.file = Some(path);
            output.answer(&row, || {
                let file = row.file.as_ref().map(|file| file.display().to_string());
                format!("key {} of {} is in {}", row.id, row.tenant, file.unwrap_or_default())
            })
        }
        _ => {
            row.secret = Some(made.secret.clone());
            output.answer(&row, || made.secret)
        }
    }
}
