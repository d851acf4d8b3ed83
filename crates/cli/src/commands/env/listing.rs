//! `hotlease env ls`, `gc` and `verify`: images of this node and of the stores.

use super::{CacheArgs, StoreArgs};
use clap::Args;
use hotlease_image::{CachedImage, ImageError, ImageId};
use hotlease_terminal::output::Printer;
use hotlease_terminal::quantity;
use serde::Serialize;
use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

/// List the images of this node and of the stores
///
/// With `--json`, prints an object for each place of an image: hash, bytes, place (`cache` or the store's folder),
/// mounted, idle_seconds (since the last use if it is in the cache, else null).
#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    #[command(flatten)]
    cache: CacheArgs,
}

/// Remove images from this node's cache, the least recently used first
///
/// Mounted images stay, and stores are not changed. With `--json`, prints an object for each removed image: hash,
/// bytes.
#[derive(Debug, Args)]
pub(crate) struct GcArgs {
    /// Bytes that may stay in the cache
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = quantity::parse_bytes)]
    keep: usize,
    #[command(flatten)]
    cache: CacheArgs,
}

/// Read images again completely, and compare them with their names
///
/// Damaged images in the cache are removed, unless they are in use, and fetched again when they are needed. The
/// exit status is 1 if any image is damaged. With `--json`, prints an object for each place of an image: hash,
/// place, ok, error (or null).
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Images to verify [default: all in the cache and the stores]
    #[arg(value_name = "HASH")]
    images: Vec<ImageId>,
    #[command(flatten)]
    cache: CacheArgs,
}

#[derive(Serialize)]
struct ImageRow {
    hash: String,
    bytes: u64,
    place: String,
    mounted: bool,
    idle_seconds: Option<u64>,
}

#[derive(Serialize)]
struct RemovedRow {
    hash: String,
    bytes: u64,
}

#[derive(Serialize)]
struct VerifiedRow {
    hash: String,
    place: String,
    ok: bool,
    error: Option<String>,
}

const CACHE: &str = "cache";

impl From<CachedImage> for ImageRow {
    fn from(image: CachedImage) -> Self {
        let idle = SystemTime::now().duration_since(image.used).unwrap_or(Duration::ZERO);
        Self {
            hash: image.id.to_string(),
            bytes: image.bytes,
            place: CACHE.into(),
            mounted: image.mounted,
            idle_seconds: Some(idle.as_secs()),
        }
    }
}

fn of_stores(stores: &StoreArgs) -> anyhow::Result<Vec<ImageRow>> {
    let mut rows = Vec::new();
    for store in stores.open()? {
        rows.extend(store.list()?.into_iter().map(|(id, bytes)| ImageRow {
            hash: id.to_string(),
            bytes,
            place: store.path().display().to_string(),
            mounted: false,
            idle_seconds: None,
        }));
    }
    Ok(rows)
}

pub(super) fn ls(args: &LsArgs, output: &mut Printer) -> anyhow::Result<()> {
    let cached = args.cache.open()?.list()?;
    let mut rows: Vec<ImageRow> = cached.into_iter().map(ImageRow::from).collect();
    rows.extend(of_stores(&args.cache.stores)?);
    let columns = "ENVIRONMENT, >SIZE, PLACE, MOUNTED, >LAST USED";
    let empty = "no images; `hotlease env pack DIR` makes one";
    output.list(&rows, columns, empty, |row| {
        let used = row
            .idle_seconds
            .map(|idle| format!("{} ago", quantity::nanoseconds(idle.saturating_mul(1_000_000_000))));
        vec![
            row.hash.clone(),
            quantity::bytes(row.bytes),
            row.place.clone(),
            if row.mounted { "yes" } else { "no" }.into(),
            used.unwrap_or_else(|| "-".into()),
        ]
    })
}

pub(super) fn gc(args: &GcArgs, output: &mut Printer) -> anyhow::Result<()> {
    let removed = args.cache.open()?.gc(args.keep as u64)?;
    let row = |image: CachedImage| RemovedRow {
        hash: image.id.to_string(),
        bytes: image.bytes,
    };
    let rows: Vec<RemovedRow> = removed.into_iter().map(row).collect();
    let columns = "REMOVED, >SIZE";
    output.list(&rows, columns, "nothing was removed", |row| {
        vec![row.hash.clone(), quantity::bytes(row.bytes)]
    })
}

pub(super) fn verify(args: &VerifyArgs, output: &mut Printer) -> anyhow::Result<()> {
    let cache = args.cache.open()?;
    let named: BTreeSet<ImageId> = args.images.iter().copied().collect();
    let is_meant = |id: &ImageId| named.is_empty() || named.contains(id);
    let mut seen = BTreeSet::new();
    let mut rows = Vec::new();
    let mut verified = |id: ImageId, place: String, outcome: Result<(), ImageError>| {
        seen.insert(id);
        rows.push(VerifiedRow {
            hash: id.to_string(),
            place,
            ok: outcome.is_ok(),
            error: outcome.err().map(|error| error.to_string()),
        });
    };
    for image in cache.list()?.into_iter().filter(|image| is_meant(&image.id)) {
        verified(image.id, CACHE.into(), cache.verify(&image.id));
    }
    for store in args.cache.stores.open()? {
        for (id, _) in store.list()?.into_iter().filter(|(id, _)| is_meant(id)) {
            verified(id, store.path().display().to_string(), store.verify(&id));
        }
    }
    if let Some(missing) = named.difference(&seen).next() {
        anyhow::bail!("environment {missing} is neither in the cache nor in a store; see `hotlease env ls`");
    }
    let columns = "ENVIRONMENT, PLACE, STATE";
    output.list(&rows, columns, "no images", |row| {
        let state = row.error.clone().unwrap_or_else(|| "right".into());
        vec![row.hash.clone(), row.place.clone(), state]
    })?;
    let damaged = rows.iter().filter(|row| !row.ok).count();
    // Shows the findings before the error.
    output.flush()?;
    anyhow::ensure!(damaged == 0, "{damaged} of {} images are damaged", rows.len());
    Ok(())
}
