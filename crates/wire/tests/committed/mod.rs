//! The seeds of the fuzz targets, `fuzz/corpus/DECODER/seed-NN`: the current output of our encoders.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Compares the committed seeds of a decoder with the current encodings; with `HOTLEASE_WRITE_CORPUS=1` rewrites them
/// first. `otherwise` describes the effect of a difference on users.
pub fn hold(decoder: &str, seeds: &[Vec<u8>], otherwise: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../fuzz/corpus/{decoder}"));
    let seeds: BTreeMap<PathBuf, Vec<u8>> = seeds
        .iter()
        .enumerate()
        .map(|(number, bytes)| (folder.join(format!("seed-{number:02}")), bytes.clone()))
        .collect();
    if std::env::var_os("HOTLEASE_WRITE_CORPUS").is_some() {
        fs::create_dir_all(&folder).expect("a folder");
        for old in committed(&folder).into_keys() {
            fs::remove_file(old).expect("an old seed goes");
        }
        for (path, bytes) in &seeds {
            fs::write(path, bytes).expect("a seed");
        }
    }
    assert!(
        committed(&folder) == seeds,
        "fuzz/corpus/{decoder} is not what is encoded today: {otherwise}"
    );
}

/// Reads the committed seeds. The fuzzer adds files of its own to a working copy's corpus; they are not committed.
fn committed(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("no corpus in {}: {error}", folder.display()))
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("seed-"))
        })
        .map(|path| (path.clone(), fs::read(&path).expect("a seed")))
        .collect()
}
