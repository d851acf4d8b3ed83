//! Containers made from inside: pid 1 of a sandbox prepares what the runtime needs, and starts it.

use super::bundle::SystemCalls;
use super::runtime_process::RuntimeProcess;
use super::{Bind, ContainerConfig, ContainerSpec, Runtime, bundle};
use crate::filter;
use crate::kernel;
use crate::policy::{Mount, Policy};
use crate::program::ProgramDescription;
use crate::root::{self, Host, NEW, OWN_FOLDERS, ProcMount, StepError, Template, step};
use crate::system_calls;
use seccompiler::BpfProgram;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Folder for everything that a runtime needs and the container does not see. It is in memory, mounted on a folder that
/// hosts keep free and that no mount shows.
const WORK: &str = "/media";
/// Path of the runtime's program, if it is not run from the host's own folders.
const PROGRAM: &str = "/runtime";
/// Size of the memory for a runtime's files (bundles, states, locks), bytes.
const WORK_BYTES: u64 = 16 << 20;
/// Largest number of characters kept of a runtime's error message.
const WORDS_MAX: usize = 1000;

/// Parts that all containers of a nursery share.
pub struct ContainerTemplate {
    containers: ContainerConfig,
    /// Mounts of the policy, and their paths in the nursery.
    shown: Vec<(PathBuf, Mount)>,
    /// Root of the runtime; `None` for the host's root.
    around: Option<Template>,
    /// Root of the container; `None` if the runtime unpacks or mounts the image itself.
    within: Option<Template>,
    /// System calls of the container, as sections of a bundle: without a network, and with it.
    system_calls: [SystemCalls; 2],
    /// System calls of the runtime and of everything that it starts: without a network, and with it. `None` allows all.
    filters: Option<[BpfProgram; 2]>,
}

impl ContainerTemplate {
    /// Gathers the parts that all containers share.
    pub fn gather(host: &Host, policy: &Policy, containers: ContainerConfig) -> Result<Self, String> {
        let failed = |error: StepError| error.to_string();
        let mut shown = Vec::new();
        for mount in &policy.mounts {
            let named = || format!("opening {}, which the policy shows", mount.source.display());
            let tree = host.tree(&mount.source).map_err(step(named())).map_err(failed)?;
            let at = root::piece(&format!("shown-{}", shown.len()));
            root::restrict_mount(&tree, mount.writable)
                .and_then(|()| root::attach_new(&tree, &at))
                .map_err(step(named()))
                .map_err(failed)?;
            shown.push((at, mount.clone()));
        }
        let (mut around, mut within) = (None, None);
        if containers.runtime.is_bare() {
            let unshown = Policy {
                mounts: Vec::new(),
                ..policy.clone()
            };
            let of_image = match &containers.image {
                None => Template::gather(host, &unshown),
                Some(image) => Template::gather_image(host, Path::new(image), &unshown),
            };
            within = Some(match containers.runtime {
                // ch-run mounts its own /dev, /proc, /sys and /tmp.
                Runtime::ChRun => of_image.map(Template::without_own),
                _ => of_image,
            });
            let own = Template::gather_for_runtime(host, &unshown);
            let program = Path::new(&containers.program);
            around = Some(own.and_then(|own| own.with_program(host, program, PROGRAM)));
        }
        let filter = |network| filter::allowing(system_calls::table_of_runtime(network));
        let filters = match containers.runtime {
            Runtime::ChRun => Some([filter(false)?, filter(true)?]),
            _ => None,
        };
        Ok(Self {
            system_calls: [SystemCalls::new(false)?, SystemCalls::new(true)?],
            containers,
            shown,
            around: around.transpose().map_err(failed)?,
            within: within.transpose().map_err(failed)?,
            filters,
        })
    }

    fn runtime(&self) -> Runtime {
        self.containers.runtime
    }

    /// Moves pid 1, which has all its namespaces already, onto the root that the runtime works in.
    pub fn enter(&self, policy: &Policy) -> Result<(), StepError> {
        let mut shown = Vec::new();
        for (at, mount) in &self.shown {
            let named = format!("mounting {}", mount.target.display());
            shown.push((root::copy_at(at).map_err(step(named.clone()))?, named));
        }
        self.make_root(policy)?;
        for (index, (tree, named)) in shown.into_iter().enumerate() {
            root::attach_new(&tree, &source(index)).map_err(step(named))?;
        }
        Ok(())
    }

    fn make_root(&self, policy: &Policy) -> Result<(), StepError> {
        let memory = |bytes: u64, at: &Path| {
            let named = || format!("mounting {}", at.display());
            let made = root::in_memory(bytes, "755", 0).map_err(step(named()))?;
            fs::create_dir_all(at).map_err(step(named()))?;
            root::attach(&made, at).map_err(step(named()))
        };
        let Some(around) = &self.around else {
            let processes = ProcMount::Complete.mount()?;
            root::attach(&processes, &Host::path("/proc")).map_err(step("mounting /proc"))?;
            root::leave_for(root::HOST)?;
            return self.cover(policy, memory);
        };
        // Allows the user namespaces that the runtime makes, and no more user namespaces after them.
        let most = match self.runtime() {
            Runtime::ChRun => "2",
            _ => "1",
        };
        fs::write(Host::path("/proc/sys/user/max_user_namespaces"), most)
            .map_err(step("limiting user namespaces of the container"))?;
        let at = |path: &str| Path::new(NEW).join(path.trim_start_matches('/'));
        around.assemble(
            Path::new(NEW),
            match self.runtime() {
                // ch-run shows the container its own /proc.
                Runtime::ChRun => ProcMount::Writable,
                _ => ProcMount::Complete,
            },
        )?;
        // crun looks here to find out about control groups.
        fs::create_dir_all(at("/sys/fs/cgroup")).map_err(step("making /sys"))?;
        memory(WORK_BYTES, &at(WORK))?;
        if let Some(within) = &self.within {
            let image = at(&image());
            fs::create_dir(&image).map_err(step("making a folder for the container's root"))?;
            within.assemble(&image, ProcMount::ReadOnly)?;
            // ch-run mounts the runtime's folders on these.
            for name in OWN_FOLDERS.iter().chain(&["home"]) {
                fs::create_dir_all(image.join(name)).map_err(step("making folders of the container's root"))?;
            }
        }
        root::leave_for(NEW)
    }

    /// Covers folders of the host by memory of the sandbox, for a runtime that sees the host and writes there.
    fn cover(&self, policy: &Policy, memory: impl Fn(u64, &Path) -> Result<(), StepError>) -> Result<(), StepError> {
        let covers = [
            ("/tmp", policy.tmp_bytes),
            ("/dev/shm", policy.shm_bytes),
            (WORK, WORK_BYTES),
        ];
        let needed = [Some(&self.containers.program), self.containers.image.as_ref()];
        let needed = needed.into_iter().flatten().map(Path::new);
        let mut kept = Vec::new();
        for path in needed.filter(|path| covers.iter().any(|(cover, _)| path.starts_with(cover))) {
            let named = || format!("opening {}", path.display());
            kept.push((path, root::copy_at(path).map_err(step(named()))?));
        }
        for (cover, bytes) in covers {
            memory(bytes, Path::new(cover))?;
        }
        for (path, tree) in kept {
            root::attach_new(&tree, path).map_err(step(format!("mounting {}", path.display())))?;
        }
        Ok(())
    }

    /// Mounts everything that the container must see at paths where the runtime finds it.
    fn bind(
        &self,
        targets: Vec<(OsString, bool)>,
        trees: impl Iterator<Item = OwnedFd>,
    ) -> Result<Vec<Bind>, StepError> {
        let named = |target: &Path| format!("mounting {}", target.display());
        let shown = self
            .shown
            .iter()
            .map(|(_, mount)| (mount.target.clone(), mount.writable, None));
        let given = targets.into_iter().zip(trees);
        let given = given.map(|((target, writable), tree)| (PathBuf::from(target), writable, Some(tree)));
        let mut binds = Vec::new();
        for (index, (target, writable, tree)) in shown.chain(given).enumerate() {
            let source = source(index);
            if let Some(tree) = &tree {
                root::attach_new(tree, &source).map_err(step(named(&target)))?;
            }
            if self.shows_its_tmp(&target) {
                // The runtime's /tmp is shown whole, so nothing can be bound into it in the container.
                let tree = root::copy_at(&source).map_err(step(named(&target)))?;
                root::attach_new(&tree, &target).map_err(step(named(&target)))?;
                continue;
            }
            if self.within.is_some() {
                let point = below(Path::new(&image()), &target);
                root::make_point(&point, source.is_dir()).map_err(step(format!(
                    "making {} in the container (nothing can be made in the folders of its image, so the image must already have a file or folder with this path)",
                    target.display()
                )))?;
            }
            binds.push(Bind {
                source,
                target,
                writable,
            });
        }
        Ok(binds)
    }

    /// Forks the process that becomes the runtime.
    pub fn wait(&self, network: bool) -> Result<RuntimeProcess, StepError> {
        let filters = self.filters.as_ref();
        RuntimeProcess::fork(filters.map(|filters| &filters[usize::from(network)]))
    }

    /// Starts the runtime; returns the container's program, or the process that becomes that program.
    pub fn start(
        &self,
        (waiting, network): (RuntimeProcess, bool),
        described: ProgramDescription,
        (targets, trees): (Vec<(OsString, bool)>, impl Iterator<Item = OwnedFd>),
        (input, output): (OwnedFd, OwnedFd),
    ) -> Result<(libc::pid_t, OwnedFd), StepError> {
        let mut binds = self.bind(targets, trees)?;
        let directory = self.directory(Path::new(&described.directory), &binds);
        let runtime = self.runtime();
        if runtime == Runtime::Crun {
            // Otherwise crun would make devices in a /dev of its own.
            let dev = Path::new("/dev");
            binds.push(Bind {
                source: below(Path::new(&image()), dev),
                target: dev.to_owned(),
                writable: false,
            });
        }
        let image = match (&self.within, &self.containers.image) {
            (None, Some(image)) => PathBuf::from(image),
            _ => image().into(),
        };
        let mut command = vec![described.path.clone()];
        command.extend(described.arguments.into_iter().skip(1));
        let told = ContainerSpec {
            image: &image,
            binds: &binds,
            environment: &described.environment,
            directory: &directory,
            command: &command,
        };
        let work = Path::new(WORK);
        if runtime == Runtime::Crun {
            let system_calls = &self.system_calls[usize::from(network)];
            let text = bundle::config(&told, system_calls).map_err(step("writing a bundle"))?;
            fs::write(work.join("config.json"), text.to_string()).map_err(step("writing a bundle"))?;
        }
        let program = match &self.around {
            Some(_) => {
                // The container may get access to parts of the runtime's root.
                root::seal().map_err(step("sealing the runtime's root"))?;
                PROGRAM.into()
            }
            None => self.containers.program.clone(),
        };
        let mut arguments = vec![OsString::from(runtime.name())];
        arguments.extend(runtime.arguments(&told, work));
        let run = ProgramDescription {
            path: program,
            arguments,
            environment: runtime.environment(&told),
            directory: "/".into(),
            mounts: Vec::new(),
            declared: Vec::new(),
            zygote: false,
        };
        let started = waiting.run(&run, (input, runtime.input_at()), output)?;
        if !runtime.exits_early() {
            return Ok(started);
        }
        let (pid, pidfd) = started;
        drop(pidfd);
        // Waits for the runtime alone: the program may have ended already, and its end is reaped later.
        let status = kernel::wait_for(pid).map_err(step("waiting for the runtime"))?;
        let named = format!("{} did not start it", runtime.name());
        if status != 0 {
            let said = fs::read_to_string(work.join("log")).unwrap_or_default();
            let said: String = said.trim().chars().take(WORDS_MAX).collect();
            let what = if said.is_empty() {
                format!("it ended with {status}")
            } else {
                said
            };
            return Err(step(named)(io::Error::other(what)));
        }
        let pid = fs::read_to_string(work.join("pid")).map_err(step(named.clone()))?;
        let pid = pid
            .trim()
            .parse()
            .map_err(|_| io::Error::other("its pid file holds no process number"));
        let pid: libc::pid_t = pid.map_err(step(named.clone()))?;
        let pidfd = kernel::open_pidfd(pid).map_err(step(named))?;
        Ok((pid, pidfd))
    }

    /// Whether this path of a container is shared with the runtime's own root.
    fn shows_its_tmp(&self, path: &Path) -> bool {
        self.runtime() == Runtime::ChRun && path.starts_with("/tmp")
    }

    /// Exit status of the program, derived from the exit status of the runtime.
    pub fn status(&self, status: i32) -> i32 {
        match status {
            129.. if self.runtime().has_signal_status() => 128 - status,
            status => status,
        }
    }

    /// The folder that the program runs in: `wanted` if the container has this folder, else `/`.
    fn directory(&self, wanted: &Path, binds: &[Bind]) -> PathBuf {
        let bound = binds.iter().rev().find_map(|bind| {
            let rest = wanted.strip_prefix(&bind.target).ok()?;
            Some(bind.source.join(rest))
        });
        let is_there = match (bound, &self.within) {
            (Some(bound), _) => bound.is_dir(),
            (None, Some(_)) if self.shows_its_tmp(wanted) => wanted.is_dir(),
            (None, Some(_)) => below(Path::new(&image()), wanted).is_dir(),
            (None, None) => wanted == Path::new("/tmp"),
        };
        if is_there { wanted.to_owned() } else { "/".into() }
    }
}

/// Path at which the runtime finds the source of a bind.
fn source(index: usize) -> PathBuf {
    Path::new(WORK).join(format!("mounts/{index}"))
}

/// Path of the container's root, as the runtime finds it.
fn image() -> String {
    format!("{WORK}/image")
}

fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}
