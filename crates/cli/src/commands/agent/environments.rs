//! Environments that an agent's leases may name.

use crate::commands::env::{MountArg, cache_folder, own_store};
use clap::{Args, ValueEnum};
use hotlease_agent::Environments;
use hotlease_image::{Cache, CacheOptions};
use hotlease_terminal::arguments::absolute;
use hotlease_terminal::quantity;
use std::ffi::OsString;
use std::path::PathBuf;

/// Arguments of environments; they read the same environment variables as the arguments of `hotlease env`.
#[derive(Debug, Clone, Args)]
pub(super) struct EnvironmentArgs {
    /// Folder of packed environments (`hotlease env pack`) that leases may name, on a file system that all nodes
    /// see; several folders are searched in this order
    #[arg(long, value_name = "STORE", env = "HOTLEASE_ENV_STORE", value_delimiter = ':')]
    environments: Vec<PathBuf>,
    /// Cache of environments on a disk of this node [default: /var/cache/hotlease/environments for root, else
    /// hotlease/environments in XDG_CACHE_HOME or ~/.cache]
    #[arg(long, value_name = "DIR", env = "HOTLEASE_ENV_CACHE")]
    environment_cache: Option<PathBuf>,
    /// Largest size of the cache; the least recently used environments are removed first
    #[arg(long, value_name = "BYTES", env = "HOTLEASE_ENV_CACHE_BYTES", default_value = "32G", value_parser = quantity::parse_bytes)]
    environment_cache_bytes: usize,
    /// How environments of tenants other than the agent's own user are mounted; `any` and `kernel` let the kernel of a
    /// root agent read images that other users have packed
    #[arg(long, value_name = "WAY", default_value = "fuse")]
    environment_mount: MountArg,
}

impl EnvironmentArgs {
    fn stores(&self) -> Vec<PathBuf> {
        let named = self.environments.iter();
        named
            .filter(|path| !path.as_os_str().is_empty())
            .map(|path| absolute(path))
            .collect()
    }

    /// Configuration of the agent.
    pub(super) fn config(&self) -> anyhow::Result<Environments> {
        let stores = self.stores();
        let cache = match stores.is_empty() {
            true => PathBuf::new(),
            false => cache_folder(self.environment_cache.as_deref())?,
        };
        Ok(Environments {
            stores,
            cache,
            cache_bytes: self.environment_cache_bytes as u64,
            mount: self.environment_mount.way(),
        })
    }

    /// Adds the user's own store if no store was named. Does nothing if this host cannot keep a cache, because
    /// the user did not ask for environments.
    pub(super) fn add_own(&mut self) {
        if !self.stores().is_empty() {
            return;
        }
        let can_be_kept = cache_folder(self.environment_cache.as_deref())
            .and_then(|cache| Ok(Cache::open(&cache, CacheOptions::default())?));
        match own_store().and_then(|store| Ok((store, can_be_kept?))) {
            Ok((store, _)) => self.environments = vec![store],
            Err(error) => tracing::debug!(%error, "no environments on this platform"),
        }
    }

    /// Adds arguments for another process of this program.
    pub(super) fn add_to(&self, args: &mut Vec<OsString>) {
        for store in self.stores() {
            args.extend(["--environments".into(), store.into()]);
        }
        if let Some(cache) = &self.environment_cache {
            args.extend(["--environment-cache".into(), absolute(cache).into()]);
        }
        let bytes = self.environment_cache_bytes.to_string();
        args.extend(["--environment-cache-bytes".into(), bytes.into()]);
        if let Some(way) = self.environment_mount.to_possible_value() {
            args.extend(["--environment-mount".into(), way.get_name().into()]);
        }
    }
}
