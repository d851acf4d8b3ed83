//! Requests of operators about tenants and keys, and the task that keeps the manager's copy of tenants and keys fresh.

use crate::identity::{Caller, ISSUER_BYTES_MAX, ISSUER_END, keys};
use crate::records::bad_request;
use crate::state::ManagerState;
use crate::state::agent_connections::answer;
use hotlease_lease::manager::{AgentProfile, AgentState, Quota};
use hotlease_net::peer::is_tenant_name;
use hotlease_store::{KeyRecord, NAME_BYTES_MAX, Position, PutCondition, TenantRecord};
use hotlease_wire::Rejection;
use hotlease_wire::grpc::{
    AddKeyRequest, KeyInfo, KeyList, NewKey, RotateKeyReply, RotateKeyRequest, Tenant, TenantList,
};
use hotlease_wire::limits::LABEL_BYTES_MAX;
use std::time::{Duration, SystemTime};
use tokio::task::JoinSet;

fn position(text: &str) -> Result<Position, Rejection> {
    text.parse().map_err(|why: String| bad_request(why))
}

/// Whether this is a tenant's name: a name that a certificate may contain, or the name of a user (`uid:1000`).
fn is_name(name: &str) -> bool {
    let uid = name.strip_prefix("uid:");
    is_tenant_name(name) || uid.is_some_and(is_uid)
}

fn is_uid(text: &str) -> bool {
    text.parse::<u32>().is_ok_and(|uid| uid.to_string() == text)
}

/// Whether this is a member's name: `uid:N`, `cert:NAME`, `jwt:SUBJECT` or `jwt:ISSUER#SUBJECT`.
fn is_member(member: &str) -> bool {
    let printable = |text: &str, bytes_max: usize| {
        !text.is_empty() && text.len() <= bytes_max && !text.chars().any(|c| c.is_control() || c.is_whitespace())
    };
    match member.split_once(':') {
        Some(("uid", uid)) => is_uid(uid),
        Some(("cert", name)) => is_tenant_name(name),
        Some(("jwt", subject)) => match subject.split_once(ISSUER_END) {
            Some((issuer, subject)) => printable(issuer, ISSUER_BYTES_MAX) && printable(subject, NAME_BYTES_MAX),
            None => printable(subject, NAME_BYTES_MAX),
        },
        _ => false,
    }
}

fn record(tenant: Tenant) -> Result<TenantRecord, Rejection> {
    if !is_name(&tenant.name) {
        return Err(bad_request(
            "a tenant's name is 1 to 64 letters, digits, dots, dashes and underscores, or uid:N",
        ));
    }
    if let Some(member) = tenant.members.iter().find(|member| !is_member(member)) {
        let shown: String = member.chars().take(NAME_BYTES_MAX).collect();
        return Err(bad_request(format!(
            "{shown:?} names no member: write uid:N, cert:NAME, jwt:SUBJECT or jwt:ISSUER#SUBJECT"
        )));
    }
    if tenant.window_hours == Some(0) || tenant.window_hours.is_some_and(|hours| hours > 24 * 366) {
        return Err(bad_request("a window of core-seconds is 1 hour to 366 days"));
    }
    let mut members = tenant.members;
    members.sort();
    members.dedup();
    Ok(TenantRecord {
        name: tenant.name,
        enabled: tenant.enabled,
        position: position(&tenant.role)?,
        quota: Quota {
            cores: tenant.cores,
            leases: tenant.leases,
            memory_bytes: tenant.memory_bytes,
            gpus: tenant.gpus,
            core_seconds: tenant.core_seconds,
        },
        window_hours: tenant.window_hours,
        members,
    })
}

fn message(state: &ManagerState, tenant: TenantRecord) -> Tenant {
    let (held_leases, held) = state.machine().cluster.holdings_of(&tenant.name);
    Tenant {
        used_core_seconds: state.directory.core_seconds(&tenant.name),
        held_leases,
        held_cores: held.cores,
        held_memory_bytes: held.memory_bytes,
        held_gpus: held.gpus,
        enabled: tenant.enabled,
        role: tenant.position.to_string(),
        cores: tenant.quota.cores,
        leases: tenant.quota.leases,
        memory_bytes: tenant.quota.memory_bytes,
        gpus: tenant.quota.gpus,
        core_seconds: tenant.quota.core_seconds,
        window_hours: tenant.window_hours,
        members: tenant.members,
        name: tenant.name,
    }
}

/// Tenants that operators have added: all if `name` is empty, else the one with this name. Refused if there is none.
pub(crate) fn tenants(state: &ManagerState, name: &str) -> Result<TenantList, Rejection> {
    let tenants = match name {
        "" => state.directory.tenants(),
        name => vec![state.directory.tenant(name).ok_or_else(|| no_tenant(name))?],
    };
    let tenants = tenants.into_iter().map(|tenant| message(state, tenant));
    Ok(TenantList {
        tenants: tenants.collect(),
    })
}

fn no_tenant(name: &str) -> Rejection {
    let shown: String = name.chars().take(NAME_BYTES_MAX).collect();
    bad_request(format!("there is no tenant {shown}; see `hotlease admin tenant list`"))
}

/// Adds a tenant, or replaces the settings of an existing tenant. Refused if the condition is not met.
pub(crate) async fn put_tenant(
    state: &ManagerState,
    (tenant, condition): (Option<Tenant>, PutCondition),
    by: &Caller,
) -> Result<Tenant, Rejection> {
    let tenant = record(tenant.ok_or_else(|| bad_request("the tenant is missing"))?)?;
    let (put, name) = (tenant.clone(), tenant.name.clone());
    // Only new members are checked: a member that the tenant has already may be the subject of an issuer that the site
    // no longer has.
    let known = state.directory.tenant(&name).map(|known| known.members);
    let known = known.unwrap_or_default();
    let mut new = tenant.members.iter().filter(|member| !known.contains(member));
    new.try_for_each(|member| state.authenticator.check_member(member))?;
    // Only the store can tell whether the condition is met: other operators and managers change tenants meanwhile.
    let is_put = state
        .change_people(move |store| store.put_tenant(put, condition))
        .await?;
    if !is_put {
        return Err(match condition {
            PutCondition::New => bad_request(format!("tenant {name} is there already")),
            PutCondition::Known | PutCondition::Always => no_tenant(&name),
        });
    }
    tracing::info!(tenant = %name, by = %by.name, "a tenant was changed");
    Ok(message(state, tenant))
}

/// Removes a tenant, and its keys. Its leases continue, and its bills stay.
pub(crate) async fn remove_tenant(state: &ManagerState, name: String, by: &Caller) -> Result<(), Rejection> {
    let removed = name.clone();
    if !state.change_people(move |store| store.remove_tenant(&removed)).await? {
        return Err(no_tenant(&name));
    }
    tracing::info!(tenant = %name, by = %by.name, "a tenant was removed");
    Ok(())
}

fn key_message(key: KeyRecord) -> KeyInfo {
    KeyInfo {
        id: key.id,
        tenant: key.tenant,
        role: key.position.to_string(),
        label: key.label,
        created_ms: key.created_ms,
        expires_ms: key.expires_ms.unwrap_or(0),
        revoked_ms: key.revoked_ms.unwrap_or(0),
        used_ms: key.used_ms.unwrap_or(0),
    }
}

/// Keys of a tenant; an empty name: of all tenants.
pub(crate) async fn keys(state: &ManagerState, tenant: String) -> Result<KeyList, Rejection> {
    let keys = state.store(|store| store.keys()).await?;
    let theirs = keys.into_iter().filter(|key| tenant.is_empty() || key.tenant == tenant);
    Ok(KeyList {
        keys: theirs.map(key_message).collect(),
    })
}

/// Makes a key. Its secret is in the reply, and is stored nowhere.
pub(crate) async fn add_key(state: &ManagerState, request: AddKeyRequest, by: &Caller) -> Result<NewKey, Rejection> {
    if request.label.len() > LABEL_BYTES_MAX || request.label.chars().any(char::is_control) {
        return Err(bad_request(
            "a key's label has at most 64 bytes, and no control characters",
        ));
    }
    if state.directory.tenant(&request.tenant).is_none() {
        return Err(no_tenant(&request.tenant));
    }
    let position = position(&request.role)?;
    let made = keys::make();
    let now_ms = state.wall_ms();
    let key = KeyRecord {
        id: made.id,
        tenant: request.tenant,
        position,
        hash: made.hash,
        label: request.label,
        created_ms: now_ms,
        expires_ms: Some(request.lasts_ms)
            .filter(|lasts| *lasts > 0)
            .map(|lasts| now_ms.saturating_add(lasts)),
        revoked_ms: None,
        used_ms: None,
    };
    let put = key.clone();
    state.change_people(move |store| store.put_key(put)).await?;
    tracing::info!(key = %key.id, tenant = %key.tenant, role = %key.position, by = %by.name, "a key was made");
    Ok(NewKey {
        key: Some(key_message(key)),
        secret: made.secret,
    })
}

/// Revokes a key: at once at this manager, and within seconds at others. A key that was revoked before keeps the time
/// of its revocation.
pub(crate) async fn revoke_key(state: &ManagerState, id: String, by: &Caller) -> Result<KeyInfo, Rejection> {
    let known = state.directory.key(&id);
    let known = known.ok_or_else(|| bad_request("there is no such key; see `hotlease admin key list`"))?;
    let key = KeyRecord {
        revoked_ms: known.revoked_ms.or(Some(state.wall_ms())),
        ..known
    };
    let put = key.clone();
    state.change_people(move |store| store.put_key(put)).await?;
    tracing::info!(key = %key.id, tenant = %key.tenant, by = %by.name, "a key was revoked");
    Ok(key_message(key))
}

/// Rotates the key of session tokens, and tells every agent to rotate the key of its lease tokens. The reply contains
/// the number of agents that rotated it, and the error of each agent that did not.
pub(crate) async fn rotate(state: &std::sync::Arc<ManagerState>, by: &Caller) -> RotateKeyReply {
    state.authenticator.rotate(SystemTime::now());
    tracing::info!(by = %by.name, "the key of session tokens was rotated");
    let former_ends_ms = state.wall_ms() + crate::identity::SESSION_MS;
    // Suspected agents are told, too: the reply then names those that did not answer.
    let agents = state.agents().into_iter();
    let agents = agents.filter(|(_, state, _)| *state != AgentState::Gone);
    let mut agents = agents.map(|(record, ..)| record);
    let mut told = JoinSet::new();
    let tell = |agent: AgentProfile| {
        let state = std::sync::Arc::clone(state);
        async move {
            let mut client = state.links.client(&agent)?;
            let rotated = client.rotate_key(RotateKeyRequest {});
            let rotated = answer(agent.id, state.config.listing_timeout, rotated).await;
            rotated.map_err(|refusal| {
                tracing::warn!(agent = %agent.id, %refusal, "an agent did not rotate its key");
                refusal
            })
        }
    };
    for agent in agents.by_ref().take(TOLD_AT_ONCE_MAX) {
        told.spawn(tell(agent));
    }
    let mut reply = RotateKeyReply {
        former_ends_ms,
        ..RotateKeyReply::default()
    };
    while let Some(rotated) = told.join_next().await {
        if let Some(agent) = agents.next() {
            told.spawn(tell(agent));
        }
        match rotated {
            Ok(Ok(_)) => reply.agents += 1,
            Ok(Err(refusal)) => reply.missed.push(refusal.to_string()),
            Err(error) => reply.missed.push(error.to_string()),
        }
    }
    reply
}

/// Limit of agents that are asked to rotate at a time.
const TOLD_AT_ONCE_MAX: usize = 64;

/// Pause between two measurements of tenants' usage, as a multiple of the time that a measurement takes: a ledger of
/// any size costs at most a tenth of a core.
const MEASURE_PAUSE: u32 = 10;
/// Shortest interval between two measurements.
const MEASURE_EVERY: Duration = Duration::from_secs(5);

/// Keeps the copy of tenants and keys, and their measured usage, fresh until the manager stops.
pub(crate) async fn keep_fresh(state: std::sync::Arc<ManagerState>) {
    let mut measure_after = tokio::time::Instant::now();
    loop {
        tokio::time::sleep(crate::identity::REFRESH).await;
        let directory = std::sync::Arc::clone(&state.directory);
        let refreshed = state.store(move |store| {
            directory.note_uses(store)?;
            directory.refresh(store)
        });
        // An error was logged where it happened; the old copy stays in use.
        let _ = refreshed.await;
        if tokio::time::Instant::now() < measure_after {
            continue;
        }
        let began = tokio::time::Instant::now();
        let (directory, now_ms) = (std::sync::Arc::clone(&state.directory), state.unix_ms());
        let _ = state.store(move |store| directory.measure(store, now_ms)).await;
        measure_after = began + (began.elapsed() * MEASURE_PAUSE).max(MEASURE_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_members_are_what_credentials_can_say() {
        for name in ["alice", "group-7.chem", "uid:0", "uid:4294967295"] {
            assert!(is_name(name), "{name}");
        }
        for name in [
            "",
            "uid:",
            "uid:-1",
            "uid:01",
            "uid:4294967296",
            "cert:alice",
            "a b",
            "jwt:x",
        ] {
            assert!(!is_name(name), "{name:?} would be taken for a tenant");
        }
        for member in [
            "uid:7",
            "cert:alice",
            "jwt:auth0|77",
            "jwt:https://login.example.org/#auth0|77",
        ] {
            assert!(is_member(member), "{member}");
        }
        for member in [
            "",
            "alice",
            "uid:x",
            "uid:07",
            "cert:",
            "cert:uid:0",
            "jwt:",
            "jwt:a b",
            "jwt:a\nb",
            "jwt:#a",
            "jwt:https://login.example.org/#",
            "jwt:https://login.example.org/#a b",
            "key:1",
        ] {
            assert!(!is_member(member), "{member:?} would be taken for a member");
        }
        assert!(!is_member(&format!("jwt:{}", "x".repeat(NAME_BYTES_MAX + 1))));
        assert!(!is_member(&format!("jwt:{}#a", "x".repeat(ISSUER_BYTES_MAX + 1))));
    }
}
