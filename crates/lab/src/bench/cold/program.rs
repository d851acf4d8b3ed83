//! Programs that the benchmark starts.

use super::ProgramKind;
use super::series::SkippedRow;
use anyhow::{Context, ensure};
use hotlease_client::{Code, Function, Invoker, Python};
use hotlease_terminal::functions::functions;
use hotlease_wire::ids::CodeHash;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Packages that the programs of the rows "with packages" import.
const PACKAGES: [&str; 3] = ["numpy", "scipy", "pandas"];
/// Folders of the system. [`Program::folders`] lists the other folders that a program needs.
const SYSTEM: [&str; 5] = ["/usr", "/bin", "/sbin", "/lib", "/lib64"];

/// A program to start, as a process and as a function.
pub(super) struct Program {
    /// Name in rows.
    pub name: String,
    /// Command line of the program, which prints something when it has a result.
    pub command: Vec<String>,
    /// Environment that the program needs.
    pub environment: BTreeMap<String, String>,
    /// Folders that the program needs besides the system's.
    pub folders: Vec<PathBuf>,
    /// Names of packages that the program imports, separated by spaces.
    pub imports: String,
    /// Code of the function.
    pub code: Code,
    call: Call,
}

enum Call {
    Native,
    Python(Box<(Python, Vec<u8>)>),
}

/// An interpreter's description of itself.
#[derive(Deserialize)]
struct InterpreterInfo {
    executable: PathBuf,
    version: String,
    hotlease: String,
    cloudpickle: String,
    path: Vec<String>,
    folders: BTreeSet<PathBuf>,
    packages: Vec<String>,
}

const ASK: &str = r"
import importlib.util, json, os, sys
import hotlease
from hotlease import _core, _versions
packages = [name for name in sys.argv[1:] if importlib.util.find_spec(name)]
real = [os.path.dirname(os.path.realpath(file)) for file in (hotlease.__file__, _core.__file__)]
print(json.dumps({
    'executable': sys.executable, 'version': '.'.join(map(str, sys.version_info[:3])),
    'hotlease': hotlease.__version__, 'cloudpickle': _versions.installed('cloudpickle'),
    'path': [folder for folder in sys.path if os.path.isdir(folder)] + real,
    'folders': sorted({sys.prefix, sys.base_prefix, *real, *filter(os.path.isdir, sys.path)}), 'packages': packages,
}))
";

impl Program {
    /// Returns a function in C, bare Python, and Python with the installed packages; and a list of missing programs and
    /// packages.
    pub(super) fn all(python: &Path, wanted: &[ProgramKind]) -> anyhow::Result<(Vec<Self>, Vec<SkippedRow>)> {
        let mut all = Vec::new();
        let native = || -> anyhow::Result<Self> {
            Ok(Self {
                name: "C".into(),
                command: vec!["/bin/echo".into(), "1".into()],
                environment: BTreeMap::new(),
                folders: Vec::new(),
                imports: String::new(),
                code: functions()?,
                call: Call::Native,
            })
        };
        if wanted.contains(&ProgramKind::C) {
            all.push(native()?);
        }
        if wanted.iter().all(|what| *what == ProgramKind::C) {
            return Ok((all, Vec::new()));
        }
        let told = match ask(python) {
            Ok(told) => told,
            Err(error) => {
                let why = format!("{error:#}; install the package there, or name another interpreter with --python");
                return Ok((all, vec![SkippedRow::new("Python", why)]));
            }
        };
        let missing = PACKAGES
            .iter()
            .filter(|name| !told.packages.iter().any(|found| found == *name));
        let missing: Vec<&str> = missing.copied().collect();
        let mut skipped = Vec::new();
        if !missing.is_empty() && wanted.contains(&ProgramKind::Packages) {
            let why = format!("{} has no such package", told.executable.display());
            skipped.push(SkippedRow::new(&missing.join(", "), why));
        }
        if wanted.contains(&ProgramKind::Python) {
            all.push(Self::python(&told, "Python", &[]));
        }
        if !told.packages.is_empty() && wanted.contains(&ProgramKind::Packages) {
            let name = format!("Python with {}", told.packages.join(", "));
            all.push(Self::python(&told, &name, &told.packages));
        }
        Ok((all, skipped))
    }

    fn python(told: &InterpreterInfo, name: &str, packages: &[String]) -> Self {
        let path = std::env::var("PYTHONPATH").ok().filter(|path| !path.is_empty());
        let environment: BTreeMap<_, _> = path.map(|path| ("PYTHONPATH".to_owned(), path)).into_iter().collect();
        let imports: String = packages.iter().map(|name| format!("import {name}; ")).collect();
        let seen = |folder: &&PathBuf| !SYSTEM.iter().any(|system| folder.starts_with(system));
        let within = |folder: &PathBuf| folder.ancestors().skip(1).any(|above| told.folders.contains(above));
        let folders = told.folders.iter().filter(seen).filter(|folder| !within(folder));
        let executable = told.executable.display().to_string();
        Self {
            name: name.to_owned(),
            command: vec![executable, "-c".into(), format!("{imports}print(1, flush=True)")],
            environment: environment.clone(),
            folders: folders.cloned().collect(),
            imports: packages.join(" "),
            code: Code::python(),
            call: Call::Python(Box::new((
                Python {
                    interpreter: told.executable.clone(),
                    image: None,
                    environment,
                    path: told.path.iter().map(Into::into).collect(),
                    directory: "/".into(),
                    version: told.version.clone(),
                    hotlease: told.hotlease.clone(),
                    cloudpickle: told.cloudpickle.clone(),
                },
                request(&format!("exec(\"{imports}\")")),
            ))),
        }
    }

    /// Interpreter of the workers, if the program is a Python program.
    pub(super) fn interpreter(&self) -> Option<Python> {
        match &self.call {
            Call::Native => None,
            Call::Python(call) => Some(call.0.clone()),
        }
    }

    /// Function of the program on a lease.
    pub(super) fn function(&self, invoker: &Invoker) -> anyhow::Result<Function> {
        Ok(invoker.function(match &self.call {
            Call::Native => "echo",
            Call::Python(_) => "hotlease.call",
        })?)
    }

    /// Calls the function once.
    pub(super) fn call(&self, function: &Function) -> anyhow::Result<()> {
        match &self.call {
            Call::Native => {
                let mut output = [0; 8];
                let length = function.invoke(&[5; 8], &mut output)?;
                ensure!((length, output) == (8, [5; 8]), "the first call does not echo");
            }
            Call::Python(call) => {
                let reply = function.call(&call.1)?;
                let is_value = reply.first().is_some_and(|kind| *kind <= 1);
                ensure!(is_value, "the first task failed: {}", String::from_utf8_lossy(&reply));
            }
        }
        Ok(())
    }
}

/// Last line of a program's standard error.
pub(super) fn last_word(done: &Output) -> String {
    let errors = String::from_utf8_lossy(&done.stderr);
    let last = errors.trim().lines().last();
    last.unwrap_or("it says nothing").to_owned()
}

fn ask(python: &Path) -> anyhow::Result<InterpreterInfo> {
    let done = Command::new(python).arg("-c").arg(ASK).args(PACKAGES).output();
    let done = done.with_context(|| format!("{} cannot be run", python.display()))?;
    ensure!(
        done.status.success(),
        "{} cannot import the package hotlease: {}",
        python.display(),
        last_word(&done)
    );
    serde_json::from_slice(&done.stdout)
        .with_context(|| format!("the output of {} is not the expected description", python.display()))
}

/// A task without arguments, as bindings/python/FORMAT.md defines it, that evaluates `expression`.
fn request(expression: &str) -> Vec<u8> {
    // The pickle, protocol 0, of functools.partial(eval, expression).
    let function = format!("cfunctools\npartial\n(cbuiltins\neval\nV{expression}\ntR.").into_bytes();
    let mut request = vec![0; 4];
    request.extend((function.len() as u32).to_le_bytes());
    request.extend(&CodeHash::of(&function).0[..16]);
    request.extend(&function);
    // No arguments: an empty tuple.
    request.extend([0x0b, 0]);
    request
}
