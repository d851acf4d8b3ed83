//! A plain Linux that is booted for one program, with the distribution's kernel and QEMU's default machine type.

use anyhow::{Context, ensure};
use hotlease_sandbox::Machine;
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::NamedTempFile;

/// A plain Linux for one program.
pub(super) struct PlainLinux {
    qemu: PathBuf,
    kernel: PathBuf,
    emulated: bool,
    /// Archive with the program and the libraries that it is linked with.
    files: NamedTempFile,
}

impl PlainLinux {
    /// Prepares a Linux with the kernel of these machines and one program, whose libraries are in the system's folders.
    pub(super) fn new(machine: &Machine, program: &Path) -> anyhow::Result<Self> {
        let parts = machine.find_parts().map_err(anyhow::Error::msg)?;
        Ok(Self {
            qemu: parts.qemu,
            kernel: parts.kernel,
            emulated: machine.emulated,
            files: first_files(program)?,
        })
    }

    /// Returns the command that boots this Linux. The command prints the program's output; the machine ends with the
    /// program.
    pub(super) fn command(&self, arguments: &[String]) -> Command {
        let mut command = Command::new(&self.qemu);
        let (acceleration, processor) = match self.emulated {
            true => ("q35,accel=tcg", "max"),
            false => ("q35,accel=kvm", "host"),
        };
        command
            .args(["-nodefaults", "-no-user-config", "-no-reboot", "-m", "256"])
            .args(["-display", "none", "-monitor", "none", "-serial", "stdio"])
            .args(["-machine", acceleration, "-cpu", processor, "-kernel"])
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(self.files.path())
            .arg("-append");
        // The program is process 1: when it ends, the kernel panics, and the machine ends.
        let line = "console=ttyS0 quiet loglevel=0 panic=-1 rdinit=/program -- ";
        command.arg(format!("{line}{}", arguments.join(" ")));
        command
    }
}

fn first_files(program: &Path) -> anyhow::Result<NamedTempFile> {
    let mut file = NamedTempFile::with_prefix("hotlease-bench-").context("cannot make a file")?;
    let mut archive = Vec::new();
    let mut add = |name: &str, mode: u32, bytes: &[u8]| -> anyhow::Result<()> {
        let entry = cpio::newc::Builder::new(name).mode(mode).nlink(1);
        let mut writer = entry.write(&mut archive, u32::try_from(bytes.len())?);
        writer.write_all(bytes)?;
        writer.finish()?;
        Ok(())
    };
    let linked = linked_with(program)?;
    let folders = linked.iter().flat_map(|library| library.ancestors().skip(1));
    let folders: BTreeSet<&Path> = folders.filter(|folder| folder.parent().is_some()).collect();
    for folder in folders {
        let name = folder.strip_prefix("/").unwrap_or(folder);
        add(&name.to_string_lossy(), 0o040_755, &[])?;
    }
    for library in &linked {
        let name = library.strip_prefix("/").unwrap_or(library);
        add(&name.to_string_lossy(), 0o100_755, &read(library)?)?;
    }
    add("program", 0o100_755, &read(program)?)?;
    cpio::newc::trailer(&mut archive)?;
    file.write_all(&archive).context("cannot write a file")?;
    Ok(file)
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Loader and libraries of a program, as `ldd` lists them.
fn linked_with(program: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let told = Command::new("ldd").arg(program).output();
    let told = told.context("ldd cannot be run")?;
    ensure!(told.status.success(), "ldd does not know {}", program.display());
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let words = told.split_whitespace().filter(|word| word.starts_with('/'));
    Ok(words.map(PathBuf::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_initial_file_system_has_the_program_and_its_libraries() {
        let linked = linked_with(Path::new("/bin/echo")).unwrap();
        assert!(linked.iter().any(|path| path.to_string_lossy().contains("libc.")));
        assert!(linked.iter().any(|path| path.to_string_lossy().contains("ld-")));
        let files = first_files(Path::new("/bin/echo")).unwrap();
        let bytes = fs::read(files.path()).unwrap();
        let (mut rest, mut names) = (&bytes[..], Vec::new());
        loop {
            let entry = cpio::newc::Reader::new(rest).unwrap();
            if entry.entry().is_trailer() {
                break;
            }
            names.push(entry.entry().name().to_owned());
            rest = entry.finish().unwrap();
        }
        assert!(names.iter().any(|name| name == "program"), "{names:?}");
        // A folder comes before its contents.
        for (at, name) in names.iter().enumerate() {
            if let Some((folder, _)) = name.rsplit_once('/') {
                assert!(names[..at].iter().any(|before| before == folder), "{names:?}");
            }
        }
    }
}
