//! Level 1 of hotlease: what isolates a worker.
//!
//! The one kind so far is `process`: a separate process in its own group, with a control socket as its
//! standard input, an environment of a few harmless variables, `/` as its directory, no core dumps, and
//! its output kept as a short tail for whoever must explain its death. It shares user, file system and
//! network with the agent; kinds that do not come later.
//!
//! * [`Launcher`] starts workers and knows when all of them are gone.
//! * [`Process`] is one of them: kill it, wait for its [`Exit`].
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use hotlease_sandbox::Launcher;
//! let launcher = Launcher::new(&Launcher::find()?)?;
//! let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
//! let worker = launcher.start(theirs.into())?;
//! worker.kill();
//! println!("{}", worker.exited().await);
//! # drop(ours); Ok(()) }
//! ```

mod launcher;
mod memory;
mod output;
mod process;

pub use launcher::{KIND, Launcher, Program, SandboxError, WORKER_BINARY};
pub use process::{End, Exit, Process};
