//! Grants without a session yet. No other party releases the lease of such a grant before its attach window is over, so
//! the lease is released when the client drops the grant.

use crate::Error;
use crate::control::Control;
use crate::lease::manager::ManagerConnection;
use hotlease_wire::grpc::Grant;
use std::future::Future;
use std::ops::Deref;

/// A grant for which no session was made. Dropping it releases its lease in the background.
pub(crate) struct UnattachedGrant {
    grant: Grant,
    manager: ManagerConnection,
    /// Whether dropping the grant releases the lease.
    is_ours: bool,
}

impl UnattachedGrant {
    pub(crate) fn new(grant: Grant, manager: &ManagerConnection) -> Self {
        Self {
            grant,
            manager: manager.clone(),
            is_ours: true,
        }
    }

    /// Asks for a grant. If the caller stops waiting, the request goes on without it, and the grant is released: if the
    /// request were cancelled while its answer is on its way, the granted lease would have no client. Runs on the
    /// control thread.
    pub(crate) async fn ask(
        manager: &ManagerConnection,
        answer: impl Future<Output = Result<Grant, Error>> + Send + 'static,
    ) -> Result<Self, Error> {
        let manager = manager.clone();
        let asking = tokio::spawn(async move { answer.await.map(|grant| Self::new(grant, &manager)) });
        asking.await.map_err(|error| Error::failed_task(&error))?
    }

    /// Number of the grant's workers; a manager that does not support parts states none, and grants all that are
    /// requested.
    pub(crate) fn workers_of(&self, asked: u16) -> u16 {
        match u16::try_from(self.grant.workers) {
            Ok(workers @ 1..) => workers,
            _ => asked,
        }
    }

    /// The grants of the other parts of the same request.
    pub(crate) fn take_others(&mut self) -> Vec<Self> {
        let others = std::mem::take(&mut self.grant.others);
        others
            .into_iter()
            .map(|grant| Self::new(grant, &self.manager))
            .collect()
    }

    /// Returns the grant, for which the caller has made a session: the lease ends with that session.
    pub(crate) fn attached(mut self) -> Grant {
        self.is_ours = false;
        std::mem::take(&mut self.grant)
    }

    /// Releases the lease, and waits until that is done.
    pub(crate) async fn release(mut self) {
        self.is_ours = false;
        release(self.manager.clone(), std::mem::take(&mut self.grant)).await;
    }
}

impl Deref for UnattachedGrant {
    type Target = Grant;

    fn deref(&self) -> &Grant {
        &self.grant
    }
}

impl Drop for UnattachedGrant {
    fn drop(&mut self) {
        if self.is_ours
            && let Ok(control) = Control::get()
        {
            control.spawn(release(self.manager.clone(), std::mem::take(&mut self.grant)));
        }
    }
}

async fn release(manager: ManagerConnection, grant: Grant) {
    for lease in std::iter::once(grant.lease).chain(grant.others.into_iter().map(|other| other.lease)) {
        if let Err(error) = manager.release(lease).await {
            tracing::debug!(%error, "a lease that was not used was not released");
        }
    }
}
