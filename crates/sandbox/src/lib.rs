//! Level 1 of hotlease: what isolates a worker.
//!
//! * [`Kind::Process`]: a separate process in its own group, with a control socket as its standard input, an environment of a
//!   few harmless variables, `/` as its directory, no core dumps, and its output kept as a short tail for whoever must explain
//!   its death. It shares user, file system and network with the agent.
//! * [`Kind::Namespace`]: the same in namespaces, a root, limits and a list of system calls of its own, made by a helper
//!   program, `hotlease-nursery`, that keeps some prepared. [`Policy`] says what it sees.
//! * [`Kind::Container`]: within the same, a container of a runtime that the site has. [`Container`] says which.
//! * [`Kind::MicroVm`]: within the same, a virtual machine, made by `hotlease-machine`. [`Machine`] says of what.
//!
//! * [`Launcher`] starts workers and knows when all of them are gone.
//! * [`Process`] is one of them: kill it, wait for its [`Exit`], ask where the time of its start went ([`Phases`]).
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use hotlease_sandbox::{Kind, Launcher, Reach};
//! let launcher = Launcher::new(&Launcher::find()?)?;
//! let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
//! let worker = launcher.start(Kind::Process, None, &Reach::default(), theirs.into())?;
//! worker.kill();
//! println!("{}", worker.exited().await);
//! # drop(ours); Ok(()) }
//! ```

mod beside;
mod container;
mod error;
mod kind;
mod launcher;
mod machine;
mod memory;
mod namespace;
mod output;
mod phases;
mod process;

pub use container::Container;
pub use error::SandboxError;
pub use hotlease_nursery::declared::Declared;
pub use hotlease_nursery::order::STORAGE_PORT;
pub use hotlease_nursery::policy::{Mount, Policy, Users};
pub use kind::{BadKind, Kind};
pub use launcher::{Held, Launcher, Program, Reach, Storage, WORKER_BINARY};
pub use machine::{MACHINE_BINARY, Machine, Parts};
pub use namespace::NURSERY_BINARY;
pub use phases::Phases;
pub use process::{End, Exit, Process};
