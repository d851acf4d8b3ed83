//! Trust in a site's authority, for clients without a certificate of their own.

use crate::error::IdentityError;
use crate::identity::{CA_FILE, ConnectionProtocol, Identity, client_without_certificate};
use rustls::ClientConfig;
use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Environment variable that names the site's `ca.pem`.
const CA_FILE_VARIABLE: &str = "HOTLEASE_CA_FILE";

/// Authority of a site, for clients that show a credential other than a certificate. `Send + Sync`.
#[derive(Clone)]
pub struct Trust {
    path: PathBuf,
    grpc: Arc<ClientConfig>,
    session: Arc<ClientConfig>,
}

impl std::fmt::Debug for Trust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Trust({})", self.path.display())
    }
}

impl Trust {
    /// Reads the site's `ca.pem`.
    pub fn load(path: &Path) -> Result<Self, IdentityError> {
        Ok(Self {
            grpc: client_without_certificate(path, ConnectionProtocol::Grpc)?,
            session: client_without_certificate(path, ConnectionProtocol::Session)?,
            path: path.to_owned(),
        })
    }

    /// Default file: `$HOTLEASE_CA_FILE`, else `hotlease/ca.pem` in the configuration directory.
    pub fn default_path() -> Result<PathBuf, IdentityError> {
        if let Some(path) = env::var_os(CA_FILE_VARIABLE).filter(|path| !path.is_empty()) {
            return Ok(path.into());
        }
        let path = Identity::config_dir().join(CA_FILE);
        if path.is_file() {
            return Ok(path);
        }
        Err(IdentityError::NoAuthority { path })
    }

    /// Path of the authority's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn grpc(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.grpc)
    }

    pub(crate) fn session(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.session)
    }
}
