//! `hotlease manager`: a manager in a process of its own.

use crate::commands::up::signals::Signals;
use crate::config_file::ConfigArgs;
use crate::service;
use crate::state::LedgerArgs;
use clap::{ArgGroup, Args};
use hotlease_fabric::runtime_dir::RuntimeDir;
use hotlease_manager::identity::{Issuers, MungeConfig};
use hotlease_manager::{MANAGER_SOCKET, Manager, ManagerNetwork, openapi};
use hotlease_net::{CertificateRole, Identity, Limits};
use hotlease_store::{Candidate, PostgresOptions, Store};
use hotlease_terminal::output::Printer;
use serde::Serialize;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Run only the manager, in the foreground
///
/// With `--database`, waits until it leads, and then serves; it ends when another manager replaces it as leader.
/// Serves until SIGINT, SIGTERM or `hotlease down`. Running leases survive its end: agents keep them, and register with
/// the next manager. With `--listen`, also serves agents and clients on other hosts that have a certificate of the
/// same authority. With `--json`, prints an object when it serves: pid, socket, listen and rest (or null).
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("elsewhere").args(["listen", "rest"]).multiple(true)))]
#[command(group(ArgGroup::new("strangers").args(["without_certificate", "rest"]).multiple(true)))]
pub(crate) struct ManagerArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Serve other hosts at this address, such as 0.0.0.0:7070 or [::]:7070
    #[arg(long, value_name = "ADDR:PORT", requires = "identity")]
    listen: Option<SocketAddr>,
    /// Serve the REST interface at this address, over TLS; clients without a certificate of the site need a key or
    /// a token; see docs/rest.md [default: only on rest.sock]
    #[arg(long, value_name = "ADDR:PORT", requires = "identity")]
    rest: Option<SocketAddr>,
    /// Identity of the manager: a folder of `hotlease identity issue --role manager`
    #[arg(long, value_name = "DIR", requires = "elsewhere")]
    identity: Option<PathBuf>,
    /// Also serve clients without a certificate at --listen, as --rest does: they need a key of `hotlease admin key
    /// add`, or a credential that the options below allow
    #[arg(long, requires = "listen")]
    without_certificate: bool,
    /// Accept tokens (JWT) of the issuers in this file; see docs/identity.md
    #[arg(long, value_name = "FILE", requires = "strangers")]
    issuers: Option<PathBuf>,
    /// Accept MUNGE credentials of this host's cluster
    #[arg(long, requires = "strangers")]
    munge: bool,
    /// Socket of munged, if it is not the usual socket
    #[arg(long, value_name = "PATH", requires = "munge")]
    munge_socket: Option<PathBuf>,
    /// Keep the ledger in a PostgreSQL database, such as "host=/run/postgresql dbname=hotlease", or over TLS
    /// "postgresql://USER@HOST/DATABASE?sslrootcert=FILE&passfile=FILE"; of several managers on one database, one leads
    /// and the others wait
    #[arg(long, value_name = "PARAMETERS", conflicts_with_all = ["state_dir", "in_memory"])]
    database: Option<String>,
    /// Print the OpenAPI document of the REST interface, and start nothing
    #[arg(long, exclusive = true)]
    openapi: bool,
    #[command(flatten)]
    ledger: LedgerArgs,
}

impl ManagerArgs {
    /// Networks for agents and clients on other hosts, and for the REST interface.
    fn networks(&self) -> anyhow::Result<(Option<ManagerNetwork>, Option<ManagerNetwork>)> {
        let Some(identity) = &self.identity else {
            return Ok((None, None));
        };
        let identity = Arc::new(Identity::load_as(identity, CertificateRole::Manager)?);
        let at = |limits: Limits, without_certificate| {
            let identity = Arc::clone(&identity);
            move |listen| ManagerNetwork {
                listen,
                identity,
                limits,
                without_certificate,
            }
        };
        let few = Limits {
            connections: REST_CONNECTIONS_MAX,
            connections_per_peer: REST_CONNECTIONS_PER_PEER_MAX,
            ..Limits::default()
        };
        Ok((
            self.listen.map(at(Limits::default(), self.without_certificate)),
            self.rest.map(at(few, true)),
        ))
    }
}

/// Largest number of connections of the REST interface from other hosts: of all peers, and of each peer.
const REST_CONNECTIONS_MAX: usize = 1024;
const REST_CONNECTIONS_PER_PEER_MAX: usize = 128;

#[derive(Serialize)]
struct ManagerSummary {
    pid: u32,
    socket: PathBuf,
    listen: Option<SocketAddr>,
    rest: Option<SocketAddr>,
}

/// Number of serving threads. Reports of 10,000 agents keep one thread busy; more than a few threads would wait for the
/// same lock.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 8)
}

/// Waits until this manager leads; returns `None` if a signal ends the wait.
async fn wait_to_lead(parameters: String, signals: &mut Signals) -> anyhow::Result<Option<Arc<dyn Store>>> {
    let told = Arc::new(AtomicBool::new(false));
    let heard = Arc::clone(&told);
    // The database's client blocks its thread.
    let mut waiting = tokio::task::spawn_blocking(move || {
        let candidate = Candidate::new(&parameters, PostgresOptions::default())?;
        tracing::info!("waits to lead the database");
        // A waiting candidate counts as ready, because waiting is its task.
        service::ready();
        let is_told = || heard.load(Ordering::Relaxed);
        let store = candidate.wait(is_told)?.filter(|_| !is_told());
        anyhow::Ok(store.map(|store| Arc::new(store) as Arc<dyn Store>))
    });
    tokio::select! {
        store = &mut waiting => store?,
        () = signals.wait_for_stop() => {
            told.store(true, Ordering::Relaxed);
            waiting.await?
        }
    }
}

pub(crate) fn carry_out(args: ManagerArgs, output: &mut Printer) -> anyhow::Result<()> {
    if args.openapi {
        return output.bytes(openapi().as_bytes());
    }
    let dir = RuntimeDir::resolve()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads())
        .enable_all()
        .build()?;
    let mut signals = {
        let _within = runtime.enter();
        Signals::listen()?
    };
    // The store is opened before any listener, so that clients only find a manager that leads.
    let mut config = match &args.database {
        Some(parameters) => match runtime.block_on(wait_to_lead(parameters.clone(), &mut signals))? {
            Some(store) => args.ledger.manager_on(&dir, store)?,
            None => return Ok(()),
        },
        None => args.ledger.manager(&dir)?,
    };
    runtime.block_on(async {
        (config.network, config.rest) = args.networks()?;
        config.issuers = args.issuers.as_deref().map(Issuers::load).transpose()?;
        config.munge = args.munge.then(|| MungeConfig {
            socket: args.munge_socket.clone(),
            ..MungeConfig::default()
        });
        let manager = Manager::start(config).await?;
        let serving = ManagerSummary {
            pid: std::process::id(),
            socket: dir.join(MANAGER_SOCKET),
            listen: manager.address(),
            rest: manager.rest_address(),
        };
        output.answer(&serving, || {
            let elsewhere = serving.listen.map(|address| format!(" and {address}"));
            let rest = serving.rest.map(|address| format!(" and https://{address}"));
            format!(
                "the manager serves {}{}{} (pid {})",
                serving.socket.display(),
                elsewhere.unwrap_or_default(),
                rest.unwrap_or_default(),
                serving.pid
            )
        })?;
        output.flush()?;
        service::ready();
        tokio::select! {
            () = signals.wait_for_stop() => {}
            () = manager.shutdown_requested() => {}
            () = manager.wait_until_stopped() => anyhow::bail!("the manager stopped by itself; its log says why"),
        }
        tokio::select! {
            () = manager.shutdown() => Ok(()),
            () = signals.wait_for_stop() => anyhow::bail!("interrupted while stopping"),
        }
    })
}
