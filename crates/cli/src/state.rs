//! Directories in which the daemons of this program keep durable state.

use clap::Args;
use hotlease_fabric::runtime_dir::{RuntimeDir, RuntimeDirError};
use hotlease_journal::network_file_system;
use hotlease_manager::identity::TenantPolicy;
use hotlease_manager::{ManagerConfig, load_tariff};
use hotlease_store::{MemoryStore, SqliteOptions, Store, open_sqlite};
use hotlease_terminal::arguments::absolute;
use hotlease_terminal::exit::CommandError;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Folder of the manager's ledger in the state directory.
const MANAGER: &str = "manager";
/// Folder of the agent's journal and name in the state directory.
const AGENT: &str = "agent";
/// Folder of state in the runtime directory, if state is kept there.
const BESIDE_SOCKETS: &str = "state";

/// Arguments of the state directory, shared by all daemons and by commands that work on their state.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct StateArgs {
    /// Directory of the ledger and the usage journal, on a disk of this host [env: HOTLEASE_STATE_DIR=] [default: in
    /// HOTLEASE_RUNTIME_DIR if that is set, else hotlease in XDG_STATE_HOME or ~/.local/state]
    // The variable is read where the directory is used: an inherited variable must not conflict with other options.
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

/// Arguments of the state directory of daemons, which can also run without one.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct DaemonStateArgs {
    #[command(flatten)]
    pub(crate) state: StateArgs,
    /// Keep nothing, even if there is a state directory: usage is lost when the process ends
    #[arg(long)]
    in_memory: bool,
}

/// Arguments of a manager's ledger.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct LedgerArgs {
    #[command(flatten)]
    pub(crate) durable: DaemonStateArgs,
    /// File with the prices of usage; see docs/billing.md [default: one unit for each hour of computing or polling]
    #[arg(long, value_name = "FILE", env = "HOTLEASE_TARIFF")]
    tariff: Option<PathBuf>,
    /// Policy for tenants that `hotlease admin tenant` has not added: `open` serves users of this host and holders
    /// of certificates, `listed` serves only operators of this host
    #[arg(long, value_name = "POLICY", env = "HOTLEASE_TENANTS", default_value = "open")]
    tenants: TenantPolicy,
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

/// The path itself or its nearest existing ancestor: it is on the file system on which the path would be.
fn nearest_existing(path: &Path) -> &Path {
    path.ancestors().find(|path| path.exists()).unwrap_or(path)
}

impl StateArgs {
    /// The directory that was named.
    pub(crate) fn named(&self) -> Option<PathBuf> {
        self.state_dir.clone().or_else(|| variable("HOTLEASE_STATE_DIR"))
    }

    /// The state directory. If none was named, it is in `XDG_STATE_HOME` or the home directory. But it is next to the
    /// sockets if `HOTLEASE_RUNTIME_DIR` is set, if there is no home directory, or if that place is on a network file
    /// system. Files next to the sockets survive the crash of a process, but perhaps not a reboot.
    fn root(&self, dir: &RuntimeDir) -> PathBuf {
        if let Some(wished) = self.named() {
            return absolute(&wished);
        }
        let beside = absolute(&dir.path().join(BESIDE_SOCKETS));
        if variable("HOTLEASE_RUNTIME_DIR").is_some() {
            return beside;
        }
        let state_home = variable("XDG_STATE_HOME").filter(|path| path.is_absolute());
        let home = || variable("HOME").map(|home| home.join(".local/state"));
        let Some(root) = state_home.or_else(home).map(|state| state.join("hotlease")) else {
            return beside;
        };
        match network_file_system(nearest_existing(&root)) {
            Ok(Some(kind)) => {
                tracing::warn!(
                    path = %root.display(), kind, instead = %beside.display(),
                    "state cannot be kept on a network file system; --state-dir names a better place"
                );
                beside
            }
            _ => root,
        }
    }

    /// Directory of the manager's ledger.
    pub(crate) fn of_manager(&self, dir: &RuntimeDir) -> PathBuf {
        self.root(dir).join(MANAGER)
    }

    /// Directory of the manager's ledger, for commands that do not need its sockets, which are gone while the
    /// manager is stopped.
    ///
    /// # Errors
    /// If no state directory was named, and no runtime directory can be used either.
    pub(crate) fn ledger(&self) -> Result<PathBuf, RuntimeDirError> {
        match self.named() {
            Some(wished) => Ok(absolute(&wished).join(MANAGER)),
            None => Ok(self.of_manager(&RuntimeDir::resolve()?)),
        }
    }

    /// Directory of the agent's journal.
    pub(crate) fn of_agent(&self, dir: &RuntimeDir) -> PathBuf {
        self.root(dir).join(AGENT)
    }
}

impl DaemonStateArgs {
    /// Opens the manager's durable state.
    fn store(&self, dir: &RuntimeDir) -> anyhow::Result<Arc<dyn Store>> {
        if self.in_memory {
            return Ok(Arc::new(MemoryStore::default()));
        }
        let path = self.state.of_manager(dir);
        let store = open_sqlite(&path, SqliteOptions::default())?;
        tracing::info!(path = %path.display(), "the ledger is open");
        Ok(Arc::new(store))
    }

    /// Directory of the agent's journal; `None` if the agent keeps no journal.
    pub(crate) fn agent_directory(&self, dir: &RuntimeDir) -> Option<PathBuf> {
        (!self.in_memory).then(|| self.state.of_agent(dir))
    }

    /// Arguments for another process of this program, with another environment and in another directory.
    pub(crate) fn to_args(&self, dir: &RuntimeDir) -> Vec<OsString> {
        match self.in_memory {
            true => vec!["--in-memory".into()],
            false => vec!["--state-dir".into(), self.state.root(dir).into()],
        }
    }
}

impl LedgerArgs {
    /// Configuration of a manager: opens its durable state and reads its prices.
    pub(crate) fn manager(&self, dir: &RuntimeDir) -> anyhow::Result<ManagerConfig> {
        self.manager_on(dir, self.durable.store(dir)?)
    }

    /// Configuration of a manager with this durable state; reads its prices.
    pub(crate) fn manager_on(&self, dir: &RuntimeDir, store: Arc<dyn Store>) -> anyhow::Result<ManagerConfig> {
        let mut config = ManagerConfig::new(dir.path());
        config.tenants = self.tenants;
        if let Some(tariff) = &self.tariff {
            config.tariff = load_tariff(tariff)?;
        }
        config.store = store;
        Ok(config)
    }

    /// Configuration of the manager of a batch job, whose ledger is in memory, because it ends with the job.
    ///
    /// # Errors
    /// If the option `--state-dir` was given, or the prices cannot be read. The variable `HOTLEASE_STATE_DIR` has no
    /// effect here.
    pub(crate) fn manager_of_job(&self, dir: &RuntimeDir) -> anyhow::Result<ManagerConfig> {
        if self.durable.state.state_dir.is_some() {
            let what = "--state-dir: the platform of a batch job keeps its ledger in memory, and ends with the job";
            return Err(CommandError::Usage(what.into()).into());
        }
        self.manager_on(dir, Arc::new(MemoryStore::default()))
    }

    /// Arguments for another process of this program, like [`DaemonStateArgs::to_args`].
    pub(crate) fn to_args(&self, dir: &RuntimeDir) -> Vec<OsString> {
        let mut args = self.durable.to_args(dir);
        args.extend(self.to_args_of_job());
        args
    }

    /// Arguments for the tasks of a batch job.
    pub(crate) fn to_args_of_job(&self) -> Vec<OsString> {
        let mut args = Vec::new();
        if let Some(tariff) = &self.tariff {
            args.extend(["--tariff".into(), absolute(tariff).into()]);
        }
        args.extend(["--tenants".into(), self.tenants.to_string().into()]);
        args
    }
}
