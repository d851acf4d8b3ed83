//! Level 1 of hotlease: sandboxes, which isolate workers.
//!
//! * [`Kind::Process`]: a separate process in its own group. It has a control socket as its standard input, an
//!   environment of a few harmless variables, `/` as its directory, and no core dumps; the end of its output is kept,
//!   to explain its death. It shares user, file system and network with the agent.
//! * [`Kind::Namespace`]: a process like that, with its own namespaces, root, limits and list of system calls. A helper
//!   program, `hotlease-nursery`, makes it, and keeps some sandboxes prepared. [`Policy`] says what the process sees.
//! * [`Kind::Container`]: within such namespaces, a container of a runtime that the site has. [`Container`] names the
//!   runtime.
//! * [`Kind::MicroVm`]: within such namespaces, a virtual machine, made by `hotlease-machine`. [`Machine`] describes
//!   it.
//!
//! * [`Launcher`] starts workers, and reports when all of them are gone.
//! * [`Process`] is a started worker: kill it, wait for its [`Exit`], read the times of its start ([`Phases`]).
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use hotlease_sandbox::{Kind, Launcher, WorkerReach};
//! let launcher = Launcher::new(&Launcher::find()?)?;
//! let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
//! let worker = launcher.start(Kind::Process, None, &WorkerReach::default(), theirs.into())?;
//! worker.kill();
//! println!("{}", worker.exited().await);
//! # drop(ours); Ok(()) }
//! ```

mod container;
mod environment;
mod error;
mod exit;
mod footprint;
mod import_folders;
mod kind;
mod launcher;
mod machine;
mod memory;
mod named_python;
mod nursery;
mod output;
mod phases;
mod process;
mod programs;
mod worker_group;
mod workload;

pub use container::Container;
pub use error::SandboxError;
pub use exit::{Exit, ProcessEnd};
pub use hotlease_nursery::directory::DeclaredDirectory;
pub use hotlease_nursery::order::STORAGE_PORT;
pub use hotlease_nursery::policy::{Mount, Policy, Users};
pub use import_folders::{HomeFolders, ImportFolders, link_chain};
pub use kind::{BadKind, Kind};
pub use launcher::Launcher;
pub use machine::{MACHINE_BINARY, Machine, MachinePaths};
pub use named_python::{NamedPythonError, check_named_python, is_named_python};
pub use nursery::NURSERY_BINARY;
pub use phases::Phases;
pub use process::{LivingCount, Process};
pub use programs::find_program;
pub use workload::{KeepAlive, Program, WORKER_BINARY, WorkerReach, WorkerStorage};
