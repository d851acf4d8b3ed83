//! Tenants, their members, and keys.

use crate::StoreError;
use hotlease_lease::manager::Quota;
use std::fmt;
use std::str::FromStr;

/// Limit of members of one tenant.
pub const MEMBERS_MAX: usize = 1024;
/// Longest name of a tenant, or of a member (without the issuer), bytes.
pub const NAME_BYTES_MAX: usize = 128;

/// Position of a tenant's members, or of a key's bearer, in the site; set by an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Position {
    /// Leases cores, and is shown only the data of its own tenant.
    #[default]
    User,
    /// Runs the site.
    Operator,
    /// Script of the batch system: offers nodes and takes them back.
    Hook,
}

impl Position {
    /// Name of the position in text.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Operator => "operator",
            Self::Hook => "hook",
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Position {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "user" => Ok(Self::User),
            "operator" => Ok(Self::Operator),
            "hook" => Ok(Self::Hook),
            _ => Err("a role is one of user, operator and hook".into()),
        }
    }
}

/// Record of a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TenantRecord {
    /// Name of the tenant, which pays.
    pub name: String,
    /// Whether requests of the tenant are served.
    pub enabled: bool,
    /// Position of its members.
    pub position: Position,
    /// Resources that the tenant may hold.
    pub quota: Quota,
    /// Window, in hours up to now, in which core-seconds are counted for the quota; `None` for all time.
    pub window_hours: Option<u32>,
    /// Members, sorted: `uid:1000`, `cert:NAME`, `jwt:SUBJECT`, `jwt:ISSUER#SUBJECT`. Each member belongs to one tenant
    /// only.
    pub members: Vec<String>,
}

/// Record of a key, without the key's secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRecord {
    /// Identifier: 16 hexadecimal digits.
    pub id: String,
    /// Tenant of the bearer.
    pub tenant: String,
    /// Position of the bearer.
    pub position: Position,
    /// BLAKE3 hash of the secret, 64 hexadecimal digits.
    pub hash: String,
    /// Label of the key, given by an operator.
    pub label: String,
    /// Time when the key was made, milliseconds since 1970.
    pub created_ms: u64,
    /// Time when the key expires; `None` if it never does.
    pub expires_ms: Option<u64>,
    /// Time when the key was revoked.
    pub revoked_ms: Option<u64>,
    /// Time of the last use, accurate to about a minute.
    pub used_ms: Option<u64>,
}

/// Condition for writing a tenant's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutCondition {
    /// There is no such tenant.
    New,
    /// There is such a tenant.
    Known,
    /// No condition.
    Always,
}

impl PutCondition {
    /// Whether the condition is met. `is_there` is whether the tenant exists.
    pub(crate) fn is_met(self, is_there: bool) -> bool {
        match self {
            Self::New => !is_there,
            Self::Known => is_there,
            Self::Always => true,
        }
    }
}

/// State of a manager about tenants and keys. It is as durable as the other state in a [`Store`](crate::Store).
pub trait TenantStore {
    /// All tenants, ordered by name.
    fn tenants(&self) -> Result<Vec<TenantRecord>, StoreError>;

    /// Adds a tenant, or replaces its record. Returns `false`, and changes nothing, if the condition is not met. Fails
    /// if a member of the tenant belongs to another tenant.
    fn put_tenant(&self, tenant: TenantRecord, condition: PutCondition) -> Result<bool, StoreError>;

    /// Removes a tenant and its keys; its bills stay. Returns `false` if there was no tenant of this name.
    fn remove_tenant(&self, name: &str) -> Result<bool, StoreError>;

    /// All keys, ordered by id.
    fn keys(&self) -> Result<Vec<KeyRecord>, StoreError>;

    /// Adds a key of a known tenant, or replaces its record; a revoked key stays revoked.
    fn put_key(&self, key: KeyRecord) -> Result<(), StoreError>;
}
