//! Kind of sandbox for each lease, and the parts of the host that its program sees.
//!
//! An agent serves tenants that its operator has named, and users of its own host. Of these users it admits only its
//! own user and root (see [`caller`](super::caller)). Code of the agent's own user gains nothing by leaving a sandbox,
//! so that user may ask for any kind. For other tenants the site's kind is the weakest: a lease that names no kind gets
//! this kind, and a lease that names a weaker kind is refused. Other tenants also cannot choose what they see of the
//! host: their interpreters and packages must be in folders that the site's policy shows, or in the system's own
//! folders. Programs of the agent's own user see the folders that they import from, but no home folder: a user who asks
//! for a sandbox does not trust the code in it with the keys in a home folder.

use crate::error::AgentError;
use crate::isolation::caller::RequestOrigin;
use hotlease_sandbox::{DeclaredDirectory, HomeFolders, ImportFolders, Kind, Launcher, Mount, link_chain};
use hotlease_wire::Rejection;
use std::path::{Component, Path, PathBuf};

/// The system's folders, which every sandbox sees.
const SYSTEM: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives"];
/// Folders of installed packages, which are not sent by value.
const PACKAGES: [&str; 2] = ["site-packages", "dist-packages"];

/// Kinds of sandbox that a site uses for its leases.
#[derive(Debug, Clone)]
pub(crate) struct Sandboxes {
    /// Kind for leases that name no kind, and the weakest kind for tenants other than the agent's own user.
    pub default: Kind,
    /// The agent's own user.
    pub own_user: u32,
}

impl Sandboxes {
    /// Whether this tenant has all rights of the agent without any lease.
    pub fn is_own(&self, tenant: &str, origin: RequestOrigin) -> bool {
        let own = [0, self.own_user].map(|user| format!("uid:{user}"));
        origin == RequestOrigin::Local && own.iter().any(|own| own == tenant)
    }

    /// Kind for a lease of `tenant` that asks for `asked` (empty: for the site's kind), whether or not this node can
    /// make it.
    pub fn kind(
        &self,
        asked: &str,
        tenant: &str,
        origin: RequestOrigin,
        launcher: &Launcher,
    ) -> Result<Kind, Rejection> {
        let kind = match asked {
            "" => self.default,
            asked => asked
                .parse()
                .map_err(|error: hotlease_sandbox::BadKind| Rejection::BadRequest {
                    what: error.to_string(),
                })?,
        };
        let refused = |why: &str| {
            Err(Rejection::NoSandbox {
                kind: kind.to_string(),
                why: why.to_owned(),
            })
        };
        if self.default != Kind::Process && !launcher.is_confining(kind) && !self.is_own(tenant, origin) {
            return refused(match kind {
                Kind::Container => {
                    "this site's container runtime does not confine code of other users; its operator lets them in with \
                     `hotlease agent --sandbox namespace`, or another `--sandbox-container`"
                }
                _ => {
                    "this site runs code of other users in a sandbox of its own (`hotlease agent --sandbox`); name no kind, \
                     and it gets the site's"
                }
            });
        }
        Ok(kind)
    }

    /// Mounts, in addition to the policy's, for workers with this interpreter and import path. Also returns the folders
    /// of interpreter and import path that are not shown. For tenants other than the agent's own user, fails if the
    /// interpreter is not shown. Reads folders of the host.
    pub fn mounts(
        &self,
        interpreter: Option<&Path>,
        path: &[PathBuf],
        tenant: &str,
        (kind, origin): (Kind, RequestOrigin),
        seen: &VisibleFolders<'_>,
    ) -> Result<ImportMounts, Rejection> {
        let path = path.iter().filter(|folder| !seen.has(folder)).cloned();
        if !self.is_own(tenant, origin) {
            // A container has its own interpreter and folders, which the agent does not see.
            if kind == Kind::Container {
                return Ok(ImportMounts::default());
            }
            seen.check_interpreter(interpreter, kind)?;
            // A check whether these folders exist would show tenants which files the host has.
            let hidden =
                path.filter(|folder| folder.is_absolute() && !PACKAGES.iter().any(|name| folder.ends_with(name)));
            return Ok(ImportMounts {
                mounts: Vec::new(),
                hidden: hidden.collect(),
            });
        }
        let path: Vec<PathBuf> = path.collect();
        let needed = ImportFolders::find(interpreter, &path, &HomeFolders::of_host());
        let shown = needed.shown.into_iter().filter(|needed| !seen.has(needed));
        Ok(ImportMounts {
            mounts: shown.map(Mount::read_only).collect(),
            hidden: needed.hidden.into_iter().collect(),
        })
    }
}

/// Folders that workers see without mounts of their program.
pub(crate) struct VisibleFolders<'a> {
    /// Mounts of the site's policy.
    pub shown: &'a [Mount],
    /// Directories that the lease declares.
    pub declared: &'a [DeclaredDirectory],
}

impl VisibleFolders<'_> {
    fn has(&self, folder: &Path) -> bool {
        SYSTEM.iter().any(|system| folder.starts_with(system))
            || self.shown.iter().any(|mount| folder.starts_with(&mount.target))
            || self
                .declared
                .iter()
                .any(|declared| folder.starts_with(&declared.target))
    }

    /// Whether a sandbox sees the host's file at this path, at the same place.
    pub fn has_of_host(&self, file: &Path) -> bool {
        let climbs = file.components().any(|part| part == Component::ParentDir);
        let is_same = |mount: &&Mount| mount.source == mount.target;
        let is_in_mount = |mount: &Mount| file.starts_with(&mount.target);
        !climbs
            && (SYSTEM.iter().any(|system| file.starts_with(system))
                || self.shown.iter().filter(is_same).any(is_in_mount))
    }

    /// Refuses an interpreter that is not shown, whether it exists or not. Looks only at links that are shown, and at
    /// the targets of these links.
    fn check_interpreter(&self, interpreter: Option<&Path>, kind: Kind) -> Result<(), Rejection> {
        let refused = |folder: &Path| {
            let folder = folder.display();
            Err(Rejection::NoSandbox {
                kind: kind.to_string(),
                why: format!(
                    "{folder} is not shown in sandboxes of this site; its operator shows it with `hotlease agent \
                     --sandbox-show {folder}`"
                ),
            })
        };
        for at in interpreter.into_iter().flat_map(link_chain) {
            let folder = at.parent().unwrap_or(Path::new("/"));
            if !self.has(&at) {
                return refused(folder.parent().unwrap_or(&at));
            }
            // A link on the way to the folder could lead to links that are not shown.
            let is_direct = || folder.canonicalize().is_ok_and(|real| real == folder);
            if !self.has_of_host(&at) || !is_direct() {
                break;
            }
        }
        Ok(())
    }
}

/// Mounts of an interpreter and its import path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ImportMounts {
    /// Folders that are shown.
    pub mounts: Vec<Mount>,
    /// Folders that are not shown. For the agent's own user: home folders, folders that contain a home folder, and
    /// folders of all users. For other tenants: folders that the site does not show.
    pub hidden: Vec<PathBuf>,
}

/// Refuses workers that their client could not reach: a client on another host connects over the network. Also refuses
/// a virtual machine with a network to a client on this host. Such a client does not need the network, and functions
/// would not have it, because the network ends at the machine's monitor.
pub(crate) fn check_reachable(kind: Kind, origin: RequestOrigin, network: bool) -> Result<(), Rejection> {
    if kind == Kind::MicroVm && origin == RequestOrigin::Local && network {
        return Err(Rejection::NoSandbox {
            kind: kind.to_string(),
            why: "functions in a virtual machine have no network in this version; do without it, or ask for kind namespace".into(),
        });
    }
    if origin == RequestOrigin::Local || network || kind == Kind::Process {
        return Ok(());
    }
    Err(Rejection::NoSandbox {
        kind: kind.to_string(),
        why: "its client is on another host, and such a sandbox has a network only if its lease asks for it: `ExecutorOptions(network=True)` in \
              Python, `options.network` in C and C++, `--network`; and if its operator grants it, with `hotlease agent \
              --sandbox-network`"
            .into(),
    })
}

/// Checks whether this node can make sandboxes of this kind. May make one as a test, on a thread that may block.
pub(crate) async fn available(launcher: Launcher, kind: Kind) -> Result<Vec<String>, Rejection> {
    let asked = tokio::task::spawn_blocking(move || launcher.find_lacking(kind)).await;
    let found = asked.unwrap_or_else(|error| Err(error.to_string()));
    found.map_err(|why| Rejection::NoSandbox {
        kind: kind.to_string(),
        why,
    })
}

/// Checks the site's kind when the agent starts: without it all leases would be refused, so the agent does not start.
/// Logs the parts of the policy that cannot be enforced.
pub(crate) async fn check(launcher: &Launcher, default: Kind) -> Result<(), AgentError> {
    let lacking = available(launcher.clone(), default).await;
    let lacking = lacking.map_err(|refusal| AgentError::Config {
        what: refusal.to_string(),
    })?;
    for lacking in lacking {
        tracing::warn!(sandbox = %default, "not enforced on this host: {lacking}");
    }
    Ok(())
}

/// Path at which a sandbox sees an environment: the path `prefix` where the environment was made, because some packages
/// contain this path. If the sandbox's own folders, or mounts of the host (`others`), occupy or surround `prefix`, the
/// environment's path on the host (`at`) is used.
pub(crate) fn place_of<'a>(prefix: PathBuf, at: &Path, others: impl Iterator<Item = &'a Mount>) -> PathBuf {
    match is_free_path(&prefix, others) {
        true => prefix,
        false => at.to_owned(),
    }
}

fn is_free_path<'a>(prefix: &Path, mut others: impl Iterator<Item = &'a Mount>) -> bool {
    let meets = |folder: &Path| prefix.starts_with(folder) || folder.starts_with(prefix);
    let own = SYSTEM.iter().chain(&["/etc"]).any(|folder| meets(Path::new(folder)));
    // In a mount of the host no folder can be made for the environment, so the folder must exist.
    let is_covered =
        |mount: &Mount| mount.target.starts_with(prefix) || (prefix.starts_with(&mount.target) && !prefix.is_dir());
    Mount::read_only(prefix).fault().is_none() && !own && !others.any(is_covered)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(default: Kind) -> Sandboxes {
        Sandboxes { default, own_user: 7 }
    }

    #[test]
    fn only_the_agents_own_user_gets_less_than_the_site_s_kind() {
        use Kind::{Container, Namespace, Process};
        let launcher = Launcher::new(Path::new("/bin/sh")).expect("a shell");
        for (default, asked, tenant, origin, expected) in [
            (Process, "", "uid:7", RequestOrigin::Local, Some(Process)),
            (Process, "namespace", "uid:7", RequestOrigin::Local, Some(Namespace)),
            (Process, "", "alice", RequestOrigin::Remote, Some(Process)),
            (Namespace, "", "uid:7", RequestOrigin::Local, Some(Namespace)),
            (Namespace, "process", "uid:7", RequestOrigin::Local, Some(Process)),
            (Namespace, "process", "uid:0", RequestOrigin::Local, Some(Process)),
            (Namespace, "process", "uid:7", RequestOrigin::Remote, None),
            (Namespace, "process", "uid:8", RequestOrigin::Local, None),
            (Namespace, "process", "alice", RequestOrigin::Local, None),
            (Namespace, "", "alice", RequestOrigin::Local, Some(Namespace)),
            (Namespace, "container", "alice", RequestOrigin::Local, Some(Container)),
            (Container, "", "alice", RequestOrigin::Local, Some(Container)),
            (Container, "process", "alice", RequestOrigin::Local, None),
            (Container, "namespace", "alice", RequestOrigin::Remote, Some(Namespace)),
            (Process, "jail", "uid:7", RequestOrigin::Local, None),
        ] {
            let kind = site(default).kind(asked, tenant, origin, &launcher);
            assert_eq!(
                kind.clone().ok(),
                expected,
                "{asked:?} by {tenant} at {default}: {kind:?}"
            );
        }
        let open = launcher.with_container(hotlease_sandbox::Container {
            runtime: "apptainer".into(),
            image: None,
        });
        for default in [Namespace, Container] {
            let kind = |tenant| site(default).kind("container", tenant, RequestOrigin::Local, &open);
            assert_eq!(kind("uid:7"), Ok(Container));
            let refused = kind("alice");
            assert!(
                matches!(&refused, Err(Rejection::NoSandbox { why, .. }) if why.contains("--sandbox-container")),
                "{refused:?}"
            );
        }
    }

    #[test]
    fn a_client_on_another_host_needs_a_network_to_its_sandboxes() {
        for (kind, origin, network, is_reached) in [
            (Kind::Namespace, RequestOrigin::Local, false, true),
            (Kind::Namespace, RequestOrigin::Remote, true, true),
            (Kind::Process, RequestOrigin::Remote, false, true),
            (Kind::Namespace, RequestOrigin::Remote, false, false),
            (Kind::Container, RequestOrigin::Remote, false, false),
            (Kind::MicroVm, RequestOrigin::Remote, true, true),
            (Kind::MicroVm, RequestOrigin::Remote, false, false),
        ] {
            let reached = check_reachable(kind, origin, network);
            assert_eq!(reached.is_ok(), is_reached, "{kind} for {origin:?}: {reached:?}");
            if let Err(refusal) = reached {
                assert!(refusal.to_string().contains("network=True"), "{refusal}");
            }
        }
    }

    #[test]
    fn a_machine_s_functions_are_not_said_to_have_a_network() {
        assert_eq!(check_reachable(Kind::MicroVm, RequestOrigin::Local, false), Ok(()));
        let refused = check_reachable(Kind::MicroVm, RequestOrigin::Local, true);
        assert!(
            matches!(&refused, Err(Rejection::NoSandbox { kind, why }) if kind == "microvm" && why.contains("namespace")),
            "{refused:?}"
        );
    }

    #[test]
    fn others_do_not_say_what_of_the_host_is_shown_to_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let prefix = folder.path().join("venv");
        std::fs::create_dir_all(prefix.join("bin")).expect("made");
        std::fs::write(prefix.join("pyvenv.cfg"), "").expect("written");
        std::os::unix::fs::symlink("/usr/bin/python3", prefix.join("bin/python")).expect("a link");
        let interpreter = prefix.join("bin/python");
        let interpreter = Some(interpreter.as_path());
        let path = [
            prefix.join("lib"),
            "/".into(),
            "/usr/lib/python3".into(),
            "relative".into(),
        ];
        let site = site(Kind::Namespace);
        let kind = (Kind::Namespace, RequestOrigin::Local);
        let mounts = |tenant, shown: &[Mount]| {
            let seen = VisibleFolders { shown, declared: &[] };
            site.mounts(interpreter, &path, tenant, kind, &seen)
        };
        let own = mounts("uid:7", &[]).expect("its own");
        assert_eq!(
            own.mounts,
            [Mount::read_only(&prefix)],
            "what is within it comes with it"
        );
        assert_eq!(own.hidden, [PathBuf::from("/")]);
        let refused = mounts("alice", &[]);
        assert!(
            matches!(&refused, Err(Rejection::NoSandbox { why, .. }) if why.contains("--sandbox-show")),
            "{refused:?}"
        );
        let shown = mounts("alice", &[Mount::read_only(folder.path())]).expect("the site shows it to all");
        assert_eq!(shown.mounts, []);
    }

    #[test]
    fn others_are_not_told_which_files_the_host_has() {
        let folder = tempfile::tempdir().expect("a folder");
        let shown_folder = folder.path().join("shown");
        for made in ["shown/bin", "secret/bin", "secret/site-packages"] {
            std::fs::create_dir_all(folder.path().join(made)).expect("made");
        }
        std::fs::write(folder.path().join("secret/bin/python"), "").expect("written");
        std::os::unix::fs::symlink("/secret/bin/python", folder.path().join("secret/bin/link")).expect("a link");
        let shown = [Mount::read_only(&shown_folder)];
        let seen = VisibleFolders {
            shown: &shown,
            declared: &[],
        };
        let site = site(Kind::Namespace);
        let mounts = |interpreter: Option<&Path>, path: &[PathBuf]| {
            site.mounts(
                interpreter,
                path,
                "alice",
                (Kind::Namespace, RequestOrigin::Remote),
                &seen,
            )
        };
        let said = |name: &str| {
            let interpreter = folder.path().join(name);
            let refused = mounts(Some(&interpreter), &[]).expect_err("it is not shown");
            refused.to_string().replace("missing", "secret")
        };
        for there in ["secret/bin/python", "secret/bin/link"] {
            assert_eq!(said(there), said("missing/bin/python"));
        }
        // Links in a folder that is shown.
        for (name, target) in [
            ("python-there", "secret/bin/python"),
            ("python-not", "missing/bin/python"),
        ] {
            std::os::unix::fs::symlink(folder.path().join(target), shown_folder.join("bin").join(name))
                .expect("a link");
        }
        assert_eq!(said("shown/bin/python-there"), said("shown/bin/python-not"));
        std::os::unix::fs::symlink(folder.path().join("secret"), shown_folder.join("way")).expect("a link");
        let through = shown_folder.join("way/bin/link");
        assert_eq!(
            mounts(Some(&through), &[]),
            Ok(ImportMounts::default()),
            "its target is not told"
        );
        let climbing = folder.path().join("shown/../secret/bin/link");
        assert_eq!(mounts(Some(&climbing), &[]), Ok(ImportMounts::default()));
        let hidden = folder.path().join("secret/bin/python");
        let of_container = (Kind::Container, RequestOrigin::Remote);
        let found = site.mounts(Some(&hidden), &[], "alice", of_container, &seen);
        assert_eq!(found, Ok(ImportMounts::default()), "it is the container's");
        let path = ["secret", "missing", "secret/site-packages"].map(|name| folder.path().join(name));
        let found = mounts(None, &path).expect("they are not shown");
        assert_eq!((found.mounts, found.hidden), (Vec::new(), path[..2].to_vec()));
    }

    #[test]
    fn a_home_folder_in_the_import_path_is_hidden_unless_the_lease_declares_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let home = folder.path().join("ann");
        std::fs::create_dir_all(home.join(".ssh")).expect("made");
        std::fs::create_dir_all(home.join("project")).expect("made");
        let path = [home.clone(), home.join("project")];
        let found = |declared: &[DeclaredDirectory]| {
            let seen = VisibleFolders { shown: &[], declared };
            let kind = (Kind::Namespace, RequestOrigin::Local);
            let found = site(Kind::Namespace).mounts(None, &path, "uid:7", kind, &seen);
            found.expect("its own")
        };
        let found_now = found(&[]);
        assert_eq!(found_now.hidden, std::slice::from_ref(&home));
        assert_eq!(found_now.mounts, [Mount::read_only(home.join("project"))]);
        let declared = DeclaredDirectory {
            trusted: home.clone(),
            own: PathBuf::new(),
            beneath: PathBuf::new(),
            target: home,
            writable: false,
            as_owner: true,
        };
        assert_eq!(found(&[declared]), ImportMounts::default(), "the lease has it already");
    }

    #[test]
    fn an_environment_stands_where_it_was_made_unless_something_else_does() {
        let folder = tempfile::tempdir().expect("a folder");
        let there = folder.path().join("project/venv");
        std::fs::create_dir_all(&there).expect("made");
        let missing = folder.path().join("project/gone");
        for (prefix, shown, expected) in [
            (Path::new("/data/ann/venv"), None, true),
            (Path::new("/tmp/venv"), None, true),
            (Path::new("/usr/local/venv"), None, false),
            (Path::new("/"), None, false),
            (Path::new("/etc/venv"), None, false),
            (Path::new("/dev/shm/venv"), None, false),
            (Path::new("relative"), None, false),
            (&there, Some(folder.path()), true),
            (&missing, Some(folder.path()), false),
            (Path::new("/opt"), Some(Path::new("/opt/python")), false),
            (Path::new("/opt/other"), Some(Path::new("/opt/python")), true),
        ] {
            let shown = shown.map(Mount::read_only);
            let found = is_free_path(prefix, shown.iter());
            assert_eq!(found, expected, "{} {shown:?}", prefix.display());
        }
    }
}
