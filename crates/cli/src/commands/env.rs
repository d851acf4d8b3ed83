//! `hotlease env`: environments packed in single files.

mod listing;
mod pack;
mod run;

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use hotlease_image::{Cache, CacheOptions, ImageStore, MountMethod};
use hotlease_terminal::arguments::absolute;
use hotlease_terminal::output::Printer;
use hotlease_terminal::quantity;
use nix::unistd::geteuid;
use std::path::{Path, PathBuf};

/// Manage Python environments as single files: packed once; fetched, cached and mounted by each node
#[derive(Debug, Args)]
pub(crate) struct EnvArgs {
    #[command(subcommand)]
    command: EnvCommand,
}

#[derive(Debug, Subcommand)]
enum EnvCommand {
    Pack(pack::PackArgs),
    Ls(listing::LsArgs),
    Gc(listing::GcArgs),
    Verify(listing::VerifyArgs),
    Run(run::RunArgs),
}

/// Stores that images are read from.
#[derive(Debug, Args)]
struct StoreArgs {
    /// Folder of images, on a file system that all nodes see; several folders are searched in this order
    #[arg(
        long = "store",
        value_name = "DIR",
        env = "HOTLEASE_ENV_STORE",
        value_delimiter = ':'
    )]
    stores: Vec<PathBuf>,
}

/// Cache of images on this node.
#[derive(Debug, Args)]
struct CacheArgs {
    /// Cache of images on a disk of this node [default: /var/cache/hotlease/environments for root, else
    /// hotlease/environments in XDG_CACHE_HOME or ~/.cache]
    #[arg(long, value_name = "DIR", env = "HOTLEASE_ENV_CACHE")]
    cache: Option<PathBuf>,
    /// Largest size of the cache; the least recently used images are removed first
    #[arg(long, value_name = "BYTES", env = "HOTLEASE_ENV_CACHE_BYTES", default_value = "32G", value_parser = quantity::parse_bytes)]
    cache_bytes: usize,
    /// How images are mounted
    #[arg(long, value_name = "WAY", default_value = "any")]
    mount: MountArg,
    #[command(flatten)]
    stores: StoreArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum MountArg {
    /// By the kernel if that is allowed (root), else through FUSE
    Any,
    /// By the kernel
    Kernel,
    /// Through FUSE, by squashfuse
    Fuse,
}

impl MountArg {
    pub(crate) fn way(self) -> MountMethod {
        match self {
            Self::Any => MountMethod::Any,
            Self::Kernel => MountMethod::Kernel,
            Self::Fuse => MountMethod::Fuse,
        }
    }
}

/// Folder of environments of the user, below a base directory of the XDG specification.
fn of_user(variable: &str, in_home: &str) -> anyhow::Result<PathBuf> {
    let from = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let base = from(variable).or_else(|| from("HOME").map(|home| home.join(in_home)));
    let base = base.with_context(|| format!("neither {variable} nor HOME is set; name a folder"))?;
    Ok(base.join("hotlease/environments"))
}

/// Default store, into which a user's images are packed.
pub(crate) fn own_store() -> anyhow::Result<PathBuf> {
    of_user("XDG_DATA_HOME", ".local/share")
}

/// Cache folder of this node: the given folder, else the default.
pub(crate) fn cache_folder(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    match named {
        Some(path) => Ok(absolute(path)),
        None if geteuid().is_root() => Ok("/var/cache/hotlease/environments".into()),
        None => of_user("XDG_CACHE_HOME", ".cache"),
    }
}

impl StoreArgs {
    /// The given store folders, else the user's own.
    fn folders(&self) -> anyhow::Result<Vec<PathBuf>> {
        let named: Vec<_> = self.stores.iter().filter(|path| !path.as_os_str().is_empty()).collect();
        if named.is_empty() {
            return Ok(vec![own_store()?]);
        }
        Ok(named.into_iter().map(|path| absolute(path)).collect())
    }

    fn open(&self) -> anyhow::Result<Vec<ImageStore>> {
        Ok(self.folders()?.iter().map(|path| ImageStore::at(path)).collect())
    }
}

impl CacheArgs {
    fn open(&self) -> anyhow::Result<Cache> {
        let root = cache_folder(self.cache.as_deref())?;
        let options = CacheOptions {
            bytes: self.cache_bytes as u64,
            stores: self.stores.folders()?,
            way: self.mount.way(),
            ..CacheOptions::default()
        };
        Ok(Cache::open(&root, options)?)
    }
}

pub(crate) fn carry_out(args: EnvArgs, output: &mut Printer) -> anyhow::Result<()> {
    match args.command {
        EnvCommand::Pack(args) => pack::carry_out(args, output),
        EnvCommand::Ls(args) => listing::ls(&args, output),
        EnvCommand::Gc(args) => listing::gc(&args, output),
        EnvCommand::Verify(args) => listing::verify(&args, output),
        EnvCommand::Run(args) => run::carry_out(&args),
    }
}
