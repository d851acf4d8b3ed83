//! Kernel modules that a machine needs and that are not built into its kernel.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Modules that the port and the files of a machine need.
const NEEDED_MODULES: [&str; 3] = ["virtio_mmio", "virtio_console", "fuse"];
/// Modules that a machine can do without.
const WANTED_MODULES: [&str; 1] = ["virtio_rng"];

/// Files of these modules, each after the modules that it depends on; an error names the module that the kernel lacks.
/// `folder` is `/lib/modules/VERSION`.
pub fn needed_files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let read = |name: &str| {
        let path = folder.join(name);
        std::fs::read_to_string(&path).map_err(|error| {
            format!(
                "the list of its kernel's modules {} cannot be read: {error}; install the kernel's package, and name it by \
                 --sandbox-kernel",
                path.display()
            )
        })
    };
    let (dependencies, built_in) = (read("modules.dep")?, read("modules.builtin")?);
    let list = ModuleList::parse(&dependencies, &built_in);
    let mut found = Vec::new();
    for name in NEEDED_MODULES {
        if !list.add(name, &mut found) {
            return Err(format!(
                "its kernel ({}) has no {name}: name one that has by --sandbox-kernel (Debian: linux-image-amd64)",
                folder.display()
            ));
        }
    }
    for name in WANTED_MODULES {
        list.add(name, &mut found);
    }
    Ok(found.into_iter().map(|path| folder.join(path)).collect())
}

/// List of modules, as `depmod` writes it.
struct ModuleList<'a> {
    /// File of each module, and the files that it depends on, in the reverse order of loading.
    files: BTreeMap<String, (&'a str, Vec<&'a str>)>,
    built_in: Vec<String>,
}

impl<'a> ModuleList<'a> {
    fn parse(dependencies: &'a str, built_in: &str) -> Self {
        let line = |line: &'a str| {
            let (file, needs) = line.split_once(':')?;
            Some((name_of(file), (file, needs.split_whitespace().collect())))
        };
        Self {
            files: dependencies.lines().filter_map(line).collect(),
            built_in: built_in.lines().map(name_of).collect(),
        }
    }

    /// Adds a module and its dependencies; returns whether the kernel has the module.
    fn add(&self, name: &str, found: &mut Vec<&'a str>) -> bool {
        let Some((file, needs)) = self.files.get(name) else {
            return self.built_in.iter().any(|built_in| built_in == name);
        };
        for file in needs.iter().rev().chain([file]) {
            if !found.contains(file) {
                found.push(file);
            }
        }
        true
    }
}

/// Name of a module's file: `kernel/fs/fuse/fuse.ko.xz` is `fuse`; minus and underscore are equal.
fn name_of(file: &str) -> String {
    let name = file.rsplit('/').next().unwrap_or(file);
    let name = name.split_once(".ko").map_or(name, |(name, _)| name);
    name.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEPENDENCIES: &str = "kernel/fs/fuse/fuse.ko.xz:\n\
                                kernel/drivers/char/virtio_console.ko:\n\
                                kernel/drivers/virtio/virtio_mmio.ko: kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko\n\
                                kernel/drivers/virtio/virtio_ring.ko:\n\
                                kernel/drivers/char/hw_random/virtio-rng.ko: kernel/drivers/char/hw_random/rng-core.ko kernel/drivers/virtio/virtio.ko\n";

    fn folder(dependencies: &str, built_in: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("modules.dep"), dependencies).expect("written");
        std::fs::write(folder.path().join("modules.builtin"), built_in).expect("written");
        folder
    }

    #[test]
    fn each_comes_after_what_it_needs_and_once() {
        let folder = folder(DEPENDENCIES, "kernel/drivers/char/virtio-console.ko\n");
        let found = needed_files(folder.path()).expect("all there");
        let names: Vec<_> = found
            .iter()
            .map(|path| path.file_name().expect("a file").to_str().expect("text"))
            .collect();
        assert_eq!(
            names,
            [
                "virtio.ko",
                "virtio_ring.ko",
                "virtio_mmio.ko",
                "virtio_console.ko",
                "fuse.ko.xz",
                "rng-core.ko",
                "virtio-rng.ko"
            ]
        );
    }

    #[test]
    fn a_kernel_without_them_is_refused_with_what_it_lacks() {
        let other = folder("kernel/drivers/virtio/virtio_mmio.ko:\n", "kernel/fs/fuse/fuse.ko\n");
        let why = needed_files(other.path()).expect_err("it has no port");
        assert!(
            why.contains("has no virtio_console") && why.contains("--sandbox-kernel"),
            "{why}"
        );
        let why = needed_files(Path::new("/nowhere")).expect_err("no such kernel");
        assert!(why.contains("/nowhere/modules.dep"), "{why}");
    }
}
