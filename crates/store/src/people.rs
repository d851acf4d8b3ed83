//! Who may use the site: tenants, who belongs to them, and keys.

use crate::StoreError;
use hotlease_lease::manager::Quota;
use std::fmt;
use std::str::FromStr;

/// Members of one tenant.
pub const MEMBERS_MAX: usize = 1024;
/// Bytes of a member's or tenant's name.
pub const NAME_BYTES_MAX: usize = 128;

/// What somebody is to the site, where an operator says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Position {
    /// Leases cores, sees what is its tenant's.
    #[default]
    User,
    /// Runs the site.
    Operator,
    /// The batch system's scripts: gives nodes and takes them back.
    Hook,
}

impl Position {
    /// As it is written.
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

/// A tenant, as operators know it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TenantRecord {
    /// Who pays.
    pub name: String,
    /// Whether anything is done for it.
    pub enabled: bool,
    /// What its members are.
    pub position: Position,
    /// What it may hold.
    pub quota: Quota,
    /// Over how many hours core-seconds are counted, up to now; `None`: since ever.
    pub window_hours: Option<u32>,
    /// Who belongs to it, sorted: `uid:1000`, `cert:NAME`, `jwt:SUBJECT`. Each belongs to one tenant.
    pub members: Vec<String>,
}

/// A key, without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRecord {
    /// Which: 16 hexadecimal digits.
    pub id: String,
    /// For whom it speaks.
    pub tenant: String,
    /// What its bearer is.
    pub position: Position,
    /// BLAKE3 of its secret, 64 hexadecimal digits.
    pub hash: String,
    /// An operator's word for it.
    pub label: String,
    /// When it was made, milliseconds since 1970.
    pub created_ms: u64,
    /// When it is over; `None`: never.
    pub expires_ms: Option<u64>,
    /// When it was revoked.
    pub revoked_ms: Option<u64>,
    /// When it was last used, to about a minute.
    pub used_ms: Option<u64>,
}

/// What a manager asks of its state about people. As durable as the rest of a [`Store`](crate::Store).
pub trait People {
    /// All tenants, by name.
    fn tenants(&self) -> Result<Vec<TenantRecord>, StoreError>;

    /// Adds a tenant or replaces what is known of it. A member of another tenant is refused.
    fn put_tenant(&self, tenant: TenantRecord) -> Result<(), StoreError>;

    /// Forgets a tenant and its keys; its bills stay. False: there was none.
    fn remove_tenant(&self, name: &str) -> Result<bool, StoreError>;

    /// All keys, by id.
    fn keys(&self) -> Result<Vec<KeyRecord>, StoreError>;

    /// Adds a key of a known tenant, or replaces what is known of it; a revoked one stays revoked.
    fn put_key(&self, key: KeyRecord) -> Result<(), StoreError>;
}
