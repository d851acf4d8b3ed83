//! `hotlease env pack`: an image of an environment.

use super::of_user;
use clap::Args;
use hotlease_image::{ImageStore, Limits, PackResult, TreeKind, pack};
use hotlease_terminal::arguments::absolute;
use hotlease_terminal::output::Printer;
use hotlease_terminal::quantity;
use serde::Serialize;
use std::path::PathBuf;

/// Pack a virtual environment, a conda prefix or any folder into an image, and print its name
///
/// Equal trees get equal names. The name goes to standard output, notes go to standard error. Needs mksquashfs.
/// With `--json`: hash, file, kind (venv, conda, directory), prefix, interpreter (the Python that nodes must have,
/// or null), image_bytes, contents_bytes, entries, setid_stripped, links_changed, opened, uncompiled.
#[derive(Debug, Args)]
pub(crate) struct PackArgs {
    /// Directory to pack
    #[arg(value_name = "DIR")]
    tree: PathBuf,
    /// Folder of images into which the image is put [default: the first of HOTLEASE_ENV_STORE, else
    /// hotlease/environments in XDG_DATA_HOME or ~/.local/share]
    #[arg(long, value_name = "STORE")]
    to: Option<PathBuf>,
}

#[derive(Serialize)]
struct PackedRow {
    hash: String,
    file: PathBuf,
    kind: TreeKind,
    prefix: PathBuf,
    interpreter: Option<PathBuf>,
    image_bytes: u64,
    contents_bytes: u64,
    entries: u64,
    setid_stripped: u64,
    links_changed: u64,
    opened: u64,
    uncompiled: u64,
}

impl From<PackResult> for PackedRow {
    fn from(packed: PackResult) -> Self {
        Self {
            hash: packed.id.to_string(),
            file: packed.path,
            kind: packed.manifest.kind(),
            prefix: packed.manifest.prefix(),
            interpreter: packed.manifest.interpreter(),
            image_bytes: packed.image_bytes,
            contents_bytes: packed.contents_bytes,
            entries: packed.entries,
            setid_stripped: packed.setid_stripped,
            links_changed: packed.links_changed,
            opened: packed.opened,
            uncompiled: packed.uncompiled,
        }
    }
}

pub(super) fn carry_out(args: PackArgs, output: &mut Printer) -> anyhow::Result<()> {
    let first = || {
        let named = std::env::var_os("HOTLEASE_ENV_STORE")?;
        std::env::split_paths(&named).find(|path| !path.as_os_str().is_empty())
    };
    let store = match args.to.or_else(first) {
        Some(path) => absolute(&path),
        None => of_user("XDG_DATA_HOME", ".local/share")?,
    };
    let row = PackedRow::from(pack(&args.tree, &ImageStore::at(&store), &Limits::default())?);
    if !output.is_json() {
        tell(&row);
    }
    output.answer(&row, || row.hash.clone())
}

/// Prints notes to stderr, because scripts read the name from stdout.
fn tell(row: &PackedRow) {
    eprintln!(
        "{} entries of {} are {} in {}",
        row.entries,
        quantity::bytes(row.contents_bytes),
        quantity::bytes(row.image_bytes),
        row.file.display()
    );
    if let Some(interpreter) = &row.interpreter {
        eprintln!("nodes need the Python that it was made with: {}", interpreter.display());
    }
    let notes = [
        (row.setid_stripped, "files lost their set-user-id or set-group-id"),
        (
            row.links_changed,
            "absolute links into the tree are relative in the image",
        ),
        (
            row.opened,
            "every user who can read the image can read files in it that others could not read",
        ),
        (
            row.uncompiled,
            "Python modules have no valid bytecode and are compiled at each import; `python -m compileall DIR` before packing makes it",
        ),
    ];
    for (count, what) in notes {
        if count > 0 {
            eprintln!("{count} {what}");
        }
    }
}
