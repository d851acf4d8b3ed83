//! Where the daemons of this program keep what must survive them.

use crate::commands::agent::absolute;
use clap::Args;
use hotlease_fabric::runtime_dir::{RuntimeDir, RuntimeDirError};
use hotlease_journal::network_file_system;
use hotlease_manager::identity::TenantPolicy;
use hotlease_manager::{ManagerConfig, load_tariff};
use hotlease_store::{MemoryStore, SqliteOptions, Store, open_sqlite};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Folder of the manager's ledger in the state directory.
const MANAGER: &str = "manager";
/// Folder of the agent's journal and name.
const AGENT: &str = "agent";
/// Folder in the runtime directory, where that is where state goes.
const BESIDE_SOCKETS: &str = "state";

/// Where state goes: the same arguments for all daemons, and for what works on their state.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct StateArgs {
    /// Where the ledger and the usage journal are kept, on a disk of this machine [default: in
    /// HOTLEASE_RUNTIME_DIR where that is set, else hotlease in XDG_STATE_HOME or ~/.local/state]
    #[arg(long, value_name = "DIR", env = "HOTLEASE_STATE_DIR")]
    pub(crate) state_dir: Option<PathBuf>,
}

/// The same for daemons, which can do without.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct DaemonStateArgs {
    #[command(flatten)]
    pub(crate) state: StateArgs,
    /// Keep nothing, whatever the state directory: what was used is forgotten when the process ends
    #[arg(long)]
    in_memory: bool,
}

/// What a manager is told of its ledger.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct LedgerArgs {
    #[command(flatten)]
    pub(crate) kept: DaemonStateArgs,
    /// A file with the prices of what is used; see docs/billing.md [default: a unit for each hour of computing
    /// or polling]
    #[arg(long, value_name = "FILE", env = "HOTLEASE_TARIFF")]
    tariff: Option<PathBuf>,
    /// Who may come whom `hotlease admin tenant` has not named: `open` for users of this machine and holders of
    /// certificates, `listed` for nobody but operators of this machine
    #[arg(long, value_name = "POLICY", env = "HOTLEASE_TENANTS", default_value = "open")]
    tenants: TenantPolicy,
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

/// The first existing folder on the way to a path: the file system that it will be on.
fn existing(path: &Path) -> &Path {
    path.ancestors().find(|path| path.exists()).unwrap_or(path)
}

impl StateArgs {
    /// The state directory. Where nothing was said and home directories are on the network, it is beside the
    /// sockets: what is there survives every crash of a process, and perhaps no reboot.
    fn root(&self, dir: &RuntimeDir) -> PathBuf {
        if let Some(wished) = &self.state_dir {
            return absolute(wished);
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
        match network_file_system(existing(&root)) {
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

    /// Where the manager's ledger is.
    pub(crate) fn of_manager(&self, dir: &RuntimeDir) -> PathBuf {
        self.root(dir).join(MANAGER)
    }

    /// Where the manager's ledger is, for who does not need its sockets: they are gone while the manager is.
    ///
    /// # Errors
    /// If no state directory was named, and no runtime directory can be used either.
    pub(crate) fn ledger(&self) -> Result<PathBuf, RuntimeDirError> {
        match &self.state_dir {
            Some(wished) => Ok(absolute(wished).join(MANAGER)),
            None => Ok(self.of_manager(&RuntimeDir::resolve()?)),
        }
    }

    /// Where the agent's journal is.
    pub(crate) fn of_agent(&self, dir: &RuntimeDir) -> PathBuf {
        self.root(dir).join(AGENT)
    }
}

impl DaemonStateArgs {
    /// The manager's durable state, opened.
    fn store(&self, dir: &RuntimeDir) -> anyhow::Result<Arc<dyn Store>> {
        if self.in_memory {
            return Ok(Arc::new(MemoryStore::default()));
        }
        let path = self.state.of_manager(dir);
        let store = open_sqlite(&path, SqliteOptions::default())?;
        tracing::info!(path = %path.display(), "the ledger is open");
        Ok(Arc::new(store))
    }

    /// Where the agent keeps its journal, if it does.
    pub(crate) fn agent_directory(&self, dir: &RuntimeDir) -> Option<PathBuf> {
        (!self.in_memory).then(|| self.state.of_agent(dir))
    }

    /// As arguments for another process of this program, with another environment and in another directory.
    pub(crate) fn to_args(&self, dir: &RuntimeDir) -> Vec<OsString> {
        match self.in_memory {
            true => vec!["--in-memory".into()],
            false => vec!["--state-dir".into(), self.state.root(dir).into()],
        }
    }
}

impl LedgerArgs {
    /// A manager's configuration with its durable state, opened, and its prices.
    pub(crate) fn manager(&self, dir: &RuntimeDir) -> anyhow::Result<ManagerConfig> {
        self.manager_on(dir, self.kept.store(dir)?)
    }

    /// The same with this durable state.
    pub(crate) fn manager_on(
        &self,
        dir: &RuntimeDir,
        store: Arc<dyn Store>,
    ) -> anyhow::Result<ManagerConfig> {
        let mut config = ManagerConfig::new(dir.path());
        config.tenants = self.tenants;
        if let Some(tariff) = &self.tariff {
            config.tariff = load_tariff(tariff)?;
        }
        config.store = store;
        Ok(config)
    }

    /// As arguments for another process of this program, as [`DaemonStateArgs::to_args`].
    pub(crate) fn to_args(&self, dir: &RuntimeDir) -> Vec<OsString> {
        let mut args = self.kept.to_args(dir);
        if let Some(tariff) = &self.tariff {
            args.extend(["--tariff".into(), absolute(tariff).into()]);
        }
        args.extend(["--tenants".into(), self.tenants.to_string().into()]);
        args
    }
}
