//! Isolation of a lease's workers: their sandboxes, and the parts of the host that they see.

use super::Node;
use crate::data::images::{Image, ImageRequester, InterpreterCheck};
use crate::data::storage::{LeaseStorage, StorageRequester};
use crate::isolation::caller::RequestOrigin;
use crate::isolation::sandboxes::{ImportMounts, VisibleFolders};
use crate::isolation::{reach, sandboxes};
use crate::workers::python;
use hotlease_sandbox::{DeclaredDirectory, KeepAlive, Kind, Mount, Program, WorkerReach};
use hotlease_wire::Rejection;
use hotlease_wire::grpc::{self, AcquireRequest, PythonRuntime};
use hotlease_wire::python::decode_path;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Decisions about a lease that are made before it is granted.
pub(super) struct Isolation {
    /// Kind of sandbox, which this node can make.
    pub sandbox: Kind,
    /// Access of its workers beyond their sandboxes, with the variables of native workers, and the form of this access
    /// that its client receives.
    pub reach: Arc<WorkerReach>,
    pub reach_told: grpc::Reach,
    /// Its keys and prefixes in object storage.
    pub storage: Option<Arc<LeaseStorage>>,
    origin: RequestOrigin,
    image: Option<LeaseImage>,
}

/// The environment that a lease names.
struct LeaseImage {
    mounted: Arc<Image>,
    /// Time until it was mounted.
    took: Duration,
    /// Mounts of the interpreter that the environment has on the host.
    interpreter: Vec<Mount>,
}

impl Isolation {
    /// Time for which the lease waited for its environment.
    pub(super) fn waiting_time(&self) -> Option<Duration> {
        self.image.as_ref().map(|image| image.took)
    }
}

/// Variables that a lease gives its workers, sorted by name; they were checked with the request.
fn variables_of(request: &AcquireRequest) -> Vec<(OsString, OsString)> {
    let variables = request.variables.iter();
    let mut variables: Vec<(OsString, OsString)> = variables.map(|(name, value)| (name.into(), value.into())).collect();
    variables.sort();
    variables
}

impl Node {
    /// Decides the isolation of a lease. Waits for things that it needs, such as its environment, for a limited time.
    pub(super) async fn isolation_of(
        &self,
        request: &AcquireRequest,
        origin: RequestOrigin,
    ) -> Result<Isolation, Rejection> {
        let sandboxes = &self.identity.sandboxes;
        let sandbox = match sandboxes.kind(&request.sandbox, &request.tenant, origin, &self.supply.launcher)? {
            // A memory server runs no code of its tenant, so it needs neither a container nor a machine.
            Kind::Container | Kind::MicroVm if request.slots_per_worker == 0 => Kind::Namespace,
            kind => kind,
        };
        if sandbox != Kind::Process {
            sandboxes::available(self.supply.launcher.clone(), sandbox).await?;
        }
        let (mut reach, mut reach_told) = self.reach_of(request, sandbox, origin).await?;
        let storage = self.storage_of(request, (sandbox, &reach), origin)?;
        if let Some(storage) = &storage {
            reach.storage = Some(storage.access());
            reach_told.storage = storage.client_places();
        }
        if request.python.is_none() {
            reach.variables = variables_of(request);
        }
        let python = request.python.as_ref().filter(|python| !python.image.is_empty());
        let image = match python {
            Some(python) => Some(
                self.image_of(python, &request.tenant, (sandbox, origin), &reach)
                    .await?,
            ),
            None => None,
        };
        Ok(Isolation {
            sandbox,
            reach: Arc::new(reach),
            reach_told,
            storage,
            origin,
            image,
        })
    }

    async fn reach_of(
        &self,
        request: &AcquireRequest,
        sandbox: Kind,
        origin: RequestOrigin,
    ) -> Result<(WorkerReach, grpc::Reach), Rejection> {
        let asked = request.reach.clone().unwrap_or_default();
        let is_own = self.identity.sandboxes.is_own(&request.tenant, origin);
        let (grants, tenant) = (self.identity.grants.clone(), request.tenant.clone());
        let found = tokio::task::spawn_blocking(move || {
            let reach = grants.reach(&asked, (&tenant, is_own), sandbox)?;
            let told = reach::client_reach(&reach, &asked);
            Ok::<_, Rejection>((reach, told))
        });
        let (reach, told) = found.await.map_err(|error| Rejection::Unavailable {
            what: format!("looking for what the lease is to reach failed: {error}"),
        })??;
        sandboxes::check_reachable(sandbox, origin, reach.network)?;
        Ok((reach, told))
    }

    fn storage_of(
        &self,
        request: &AcquireRequest,
        (kind, reach): (Kind, &WorkerReach),
        origin: RequestOrigin,
    ) -> Result<Option<Arc<LeaseStorage>>, Rejection> {
        let asked = request.reach.as_ref().map_or(&[][..], |reach| &reach.storage);
        let asker = StorageRequester {
            tenant: &request.tenant,
            is_own: self.identity.sandboxes.is_own(&request.tenant, origin),
            kind,
            network: reach.network,
            node: &self.identity.host,
        };
        self.supply.storage.of_lease(asked, asker)
    }

    /// Mounts the environment of a lease, and checks it. Files of the host are looked at only if the lease's tenant may
    /// see them, because refusals would otherwise tell which files the host has.
    async fn image_of(
        &self,
        python: &PythonRuntime,
        tenant: &str,
        (sandbox, origin): (Kind, RequestOrigin),
        reach: &WorkerReach,
    ) -> Result<LeaseImage, Rejection> {
        let begun = Instant::now();
        let program = python::within_image(decode_path(&python.interpreter))?;
        let sandboxes = &self.identity.sandboxes;
        let is_own = sandboxes.is_own(tenant, origin);
        let image = self
            .identity
            .images
            .get(&python.image, ImageRequester { tenant, is_own })
            .await?;
        let took = begun.elapsed();
        let seen = self.seen(&reach.directories);
        let named = image.manifest().interpreter();
        let interpreter = match sandbox {
            Kind::Process => Vec::new(),
            kind => {
                sandboxes
                    .mounts(named.as_deref(), &[], tenant, (kind, origin), &seen)?
                    .mounts
            }
        };
        let check = match &named {
            _ if !interpreter.is_empty() => InterpreterCheck::Trusted,
            Some(named) if is_own || sandbox == Kind::Process || seen.has_of_host(named) => InterpreterCheck::Exists,
            _ => InterpreterCheck::None,
        };
        let mounted = Arc::clone(&image);
        let checked = tokio::task::spawn_blocking(move || mounted.check(&program, check)).await;
        checked.map_err(|error| Rejection::Unavailable {
            what: format!("looking into an environment failed: {error}"),
        })??;
        Ok(LeaseImage {
            mounted: image,
            took,
            interpreter,
        })
    }

    /// Folders that workers of a lease see without mounts of their program.
    fn seen<'a>(&'a self, declared: &'a [DeclaredDirectory]) -> VisibleFolders<'a> {
        VisibleFolders {
            shown: &self.supply.launcher.policy().mounts,
            declared,
        }
    }

    /// Program of a lease's Python workers, with the mounts that it needs in its sandbox. Also returns the folders of
    /// its import path that the sandbox does not show. Reads folders of the host.
    pub(super) fn program(
        &self,
        python: PythonRuntime,
        tenant: &str,
        isolation: &Isolation,
    ) -> Result<(Arc<Program>, Vec<PathBuf>), Rejection> {
        let (sandboxes, origin) = (&self.identity.sandboxes, isolation.origin);
        let seen = self.seen(&isolation.reach.directories);
        let path: Vec<PathBuf> = python.path.iter().map(|folder| decode_path(folder).into()).collect();
        let mounts = |interpreter: Option<&Path>, path: &[PathBuf]| match isolation.sandbox {
            Kind::Process => Ok(ImportMounts::default()),
            kind => sandboxes.mounts(interpreter, path, tenant, (kind, origin), &seen),
        };
        let Some(image) = &isolation.image else {
            let mut program = python::program(python, None)?;
            let found = mounts(Some(&program.path), &path)?;
            program.mounts = found.mounts;
            return Ok((Arc::new(program), found.hidden));
        };
        // Workers of the agent's own user also see the folders of the client's import path, if these can be shown; for
        // other workers the image replaces these folders.
        let (image, mut needed) = (&image.mounted, image.interpreter.clone());
        let of_client = match sandboxes.is_own(tenant, origin) {
            true => mounts(None, &path).unwrap_or_default(),
            false => ImportMounts::default(),
        };
        needed.extend(of_client.mounts);
        let place = match isolation.sandbox {
            Kind::Process => image.at().to_owned(),
            _ => sandboxes::place_of(image.manifest().prefix(), image.at(), needed.iter().chain(seen.shown)),
        };
        let mut program = python::program(python, Some(&place))?;
        if isolation.sandbox != Kind::Process {
            needed.push(Mount {
                source: image.at().to_owned(),
                target: place.clone(),
                writable: false,
            });
        }
        program.mounts = needed;
        let asked = program.environment.iter().find(|(name, _)| name == "PATH");
        let search = asked.map(|(_, path)| path.clone()).or_else(|| std::env::var_os("PATH"));
        for (name, value) in image.environment(&place, search) {
            program.environment.retain(|(theirs, _)| theirs != name);
            program.environment.push((name.into(), value));
        }
        program.held = KeepAlive::new(Arc::clone(image) as _);
        Ok((Arc::new(program), of_client.hidden))
    }

    /// Access of a lease in the form that its client receives, with the parts of the host that its sandbox shows.
    pub(super) fn reach_message(
        &self,
        isolation: &Isolation,
        program: Option<&Program>,
        hidden: &[PathBuf],
    ) -> grpc::Reach {
        let own = program.map_or(&[][..], |program| &program.mounts);
        let shown = self.supply.launcher.policy().mounts.iter().chain(own);
        grpc::Reach {
            shown: match isolation.sandbox {
                Kind::Process => Vec::new(),
                _ => shown.map(shown_text).collect(),
            },
            hidden: hidden
                .iter()
                .map(|folder| folder.to_string_lossy().into_owned())
                .collect(),
            ..isolation.reach_told.clone()
        }
    }
}

/// Description of a mount for people.
fn shown_text(mount: &Mount) -> String {
    let place = match mount.source == mount.target {
        true => String::new(),
        false => format!(" as {}", mount.target.display()),
    };
    let how = if mount.writable { " to read and write" } else { "" };
    format!("{}{place}{how}", mount.source.display())
}
