//! Manager that a client talks to, on its own node or on another host, and the proof that the client shows to it.

use crate::NetError;
use crate::address::Address;
use crate::credential::Credential;
use crate::error::IdentityError;
use crate::grpc;
use crate::identity::{IDENTITY_VARIABLE, Identity};
use crate::job::JobFolder;
use crate::peer::CertificateRole;
use crate::site_channel::SiteChannel;
use crate::trust::Trust;
use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Environment variable that names the manager. Several addresses are separated by commas: one manager serves and the
/// others stand by.
pub const MANAGER_VARIABLE: &str = "HOTLEASE_MANAGER";
/// Environment variable that names the file of a key.
pub const KEY_FILE_VARIABLE: &str = "HOTLEASE_KEY_FILE";
/// Environment variable that names the file of a token.
pub const TOKEN_FILE_VARIABLE: &str = "HOTLEASE_TOKEN_FILE";
/// Environment variable that says whether to use MUNGE: 1 or 0.
pub const MUNGE_VARIABLE: &str = "HOTLEASE_MUNGE";
/// Environment variable that names munged's socket.
pub const MUNGE_SOCKET_VARIABLE: &str = "HOTLEASE_MUNGE_SOCKET";
/// Proof of identity that a client shows to a manager on another host.
#[derive(Debug, Clone)]
pub enum Proof {
    /// A certificate.
    Certificate(Arc<Identity>),
    /// A credential other than a certificate, and the authority whose daemons may see it.
    Credential(Credential, Trust),
}

/// Managers of a site on other hosts, and the proof that a client shows to them.
#[derive(Debug, Clone)]
pub struct SiteAccess {
    /// Addresses of the managers, at least one. One of the managers serves.
    pub managers: Vec<Address>,
    /// Proof of who we are. A certificate must be of role client.
    pub proof: Proof,
}

/// Settings by which a user names the manager and the proof to show to it. The environment supplies what is missing.
#[derive(Debug, Clone, Copy, Default)]
pub struct SiteOptions<'a> {
    /// `https://HOST:PORT`, or several of them separated by commas.
    pub manager: Option<&'a str>,
    /// Whether the user named a manager of this node. Then variables of the environment, and the batch job, are
    /// ignored.
    pub is_local: bool,
    /// Folder with a certificate.
    pub identity: Option<&'a Path>,
    /// Credential instead of a certificate.
    pub credential: Option<&'a Credential>,
    /// The site's `ca.pem`, for a client without a certificate.
    pub authority: Option<&'a Path>,
}

impl SiteAccess {
    /// Makes a channel to the manager that serves.
    pub fn channel(&self) -> SiteChannel {
        let managers = self.managers.clone();
        match &self.proof {
            Proof::Certificate(identity) => {
                grpc::channel_to_first(managers, Arc::clone(identity), CertificateRole::Manager).into()
            }
            Proof::Credential(credential, trust) => {
                SiteChannel::with_sign_in(managers, credential.clone(), trust.clone())
            }
        }
    }

    /// Finds the manager: from `wanted`, else from `$HOTLEASE_MANAGER`, else the manager of this batch job, unless
    /// `$HOTLEASE_RUNTIME_DIR` names a platform of this node. Returns `None` for the manager of this node. Finds the
    /// proof: from `wanted`, else from the environment, else the identity in the default folder. For the manager of a
    /// job the proof is in the job's folder.
    pub fn find(wanted: SiteOptions<'_>) -> Result<Option<Self>, NetError> {
        let variable = || env::var(MANAGER_VARIABLE).ok().filter(|_| !wanted.is_local);
        let Some(manager) = wanted.manager.map(str::to_owned).or_else(variable) else {
            let job = JobFolder::in_use().filter(|_| !wanted.is_local);
            return job.map_or(Ok(None), |job| job.site());
        };
        if manager.is_empty() {
            return Ok(None);
        }
        let managers = manager.split(',').map(|manager| manager.trim().parse());
        Ok(Some(Self {
            managers: managers.collect::<Result<_, _>>()?,
            proof: Proof::find(wanted)?,
        }))
    }
}

fn path_of(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

impl Proof {
    fn find(wanted: SiteOptions<'_>) -> Result<Self, NetError> {
        let with = |credential: Credential| {
            let trust = match wanted.authority {
                Some(path) => Trust::load(path)?,
                None => Trust::load(&Trust::default_path()?)?,
            };
            Ok(Self::Credential(credential, trust))
        };
        let certificate = |dir: &Path| {
            let identity = Identity::load_as(dir, CertificateRole::Client)?;
            Ok(Self::Certificate(Arc::new(identity)))
        };
        match (wanted.identity, wanted.credential) {
            (Some(_), Some(credential)) => Err(IdentityError::Ambiguous {
                what: format!("an identity and {credential}"),
            }
            .into()),
            (Some(dir), None) => certificate(dir),
            (None, Some(credential)) => with(credential.clone()),
            (None, None) => match Credential::of_environment()? {
                Some(credential) => with(credential),
                None => certificate(&Identity::default_dir()?),
            },
        }
    }

    /// Name that distinguishes proofs; contains no secret.
    pub fn name(&self) -> String {
        match self {
            Self::Certificate(identity) => identity.dir().display().to_string(),
            Self::Credential(credential, trust) => format!("{credential}, {}", trust.path().display()),
        }
    }
}

impl Credential {
    /// Credential that the environment names; `None` if it names a certificate, or nothing.
    fn of_environment() -> Result<Option<Self>, NetError> {
        let munge = match env::var(MUNGE_VARIABLE).as_deref() {
            Err(_) | Ok("" | "0") => None,
            Ok("1") => Some(Self::Munge {
                socket: path_of(MUNGE_SOCKET_VARIABLE),
            }),
            Ok(_) => {
                return Err(IdentityError::Ambiguous {
                    what: format!("{MUNGE_VARIABLE} is neither 1 nor 0"),
                }
                .into());
            }
        };
        let found = [
            (IDENTITY_VARIABLE, path_of(IDENTITY_VARIABLE).map(|_| None)),
            (
                KEY_FILE_VARIABLE,
                path_of(KEY_FILE_VARIABLE).map(|path| Some(Self::KeyFile(path))),
            ),
            (
                TOKEN_FILE_VARIABLE,
                path_of(TOKEN_FILE_VARIABLE).map(|path| Some(Self::TokenFile(path))),
            ),
            (MUNGE_VARIABLE, munge.map(Some)),
        ];
        let mut found = found
            .into_iter()
            .filter_map(|(name, found)| found.map(|found| (name, found)));
        match (found.next(), found.next()) {
            (Some((first, _)), Some((second, _))) => Err(IdentityError::Ambiguous {
                what: format!("{first} and {second}"),
            }
            .into()),
            (first, _) => Ok(first.and_then(|(_, credential)| credential)),
        }
    }
}

/// Shows the managers' addresses, which also distinguish sites.
impl fmt::Display for SiteAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let managers: Vec<_> = self.managers.iter().map(Address::to_string).collect();
        f.write_str(&managers.join(","))
    }
}
