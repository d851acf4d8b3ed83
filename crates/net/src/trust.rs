//! Whom we believe without being anybody ourselves: the site's authority, and no certificate of our own.

use crate::error::IdentityError;
use crate::identity::{Protocol, client_without_certificate};
use rustls::ClientConfig;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The authority of a site, for clients that bring another credential than a certificate. `Send + Sync`.
#[derive(Clone)]
pub struct Trust {
    path: PathBuf,
    grpc: Arc<ClientConfig>,
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
            grpc: client_without_certificate(path, Protocol::Grpc)?,
            path: path.to_owned(),
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn grpc(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.grpc)
    }
}
