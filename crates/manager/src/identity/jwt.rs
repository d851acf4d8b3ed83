//! JSON web tokens of issuers that the site trusts: an identity provider of the organisation, or the site's own.
//!
//! RS256, ES256 and EdDSA are accepted, as far as the site's file allows them. The keys are in a file that is read
//! again when it changes. A subject belongs to its issuer: the same subject of another issuer is another member. An
//! issuer can name members only of those tenants that the site's file allows for this issuer. Issuer, audience, subject
//! and expiry must be present and valid; clocks may differ by 30 s. A file with a shared secret among its keys is
//! refused, so that no public key can be mistaken for a secret.

mod ring_verifier;

use super::Subject;
use super::not_authenticated;
use super::subject::ISSUER_END;
use hotlease_net::peer::is_tenant_name;
use hotlease_store::NAME_BYTES_MAX;
use hotlease_wire::Rejection;
use jsonwebtoken::jwk::{AlgorithmParameters, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

/// Allowance for clocks that differ, seconds.
const LEEWAY_S: u64 = 30;
/// Longest file of issuers or of keys, bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Longest name of an issuer, bytes.
pub(crate) const ISSUER_BYTES_MAX: usize = 256;
/// Limit of keys of an issuer.
const KEYS_MAX: usize = 64;

/// Error of a file of issuers or of keys.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {why}")]
pub struct IssuersError {
    /// Path of the file.
    path: PathBuf,
    /// Description of the fault.
    why: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
enum AllowedAlgorithm {
    RS256,
    ES256,
    EdDSA,
}

impl AllowedAlgorithm {
    fn algorithm(self) -> Algorithm {
        match self {
            Self::RS256 => Algorithm::RS256,
            Self::ES256 => Algorithm::ES256,
            Self::EdDSA => Algorithm::EdDSA,
        }
    }
}

fn all() -> Vec<AllowedAlgorithm> {
    vec![
        AllowedAlgorithm::RS256,
        AllowedAlgorithm::ES256,
        AllowedAlgorithm::EdDSA,
    ]
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    issuer: Vec<IssuerFile>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct IssuerFile {
    issuer: String,
    audience: String,
    keys: PathBuf,
    #[serde(default = "all")]
    algorithms: Vec<AllowedAlgorithm>,
    /// Tenants whose members the issuer's tokens may name; absent: all tenants.
    tenants: Option<Vec<String>>,
    tenant_claim: Option<String>,
    #[serde(default)]
    map: Vec<Mapping>,
}

/// Rule of the site's file: a token belongs to the tenant if the claim is this value, or a list that contains this
/// value.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mapping {
    claim: String,
    value: String,
    tenant: String,
}

struct IssuerKeys {
    written: Option<SystemTime>,
    set: JwkSet,
}

struct Issuer {
    config: IssuerFile,
    /// Whether the site has no other issuer.
    is_only: bool,
    keys: Mutex<IssuerKeys>,
}

/// The issuers of a site.
pub struct Issuers(Vec<Issuer>);

fn read(path: &Path) -> Result<String, IssuersError> {
    let failed = |why: String| IssuersError {
        path: path.to_owned(),
        why,
    };
    let size = fs::metadata(path).map_err(|error| failed(error.to_string()))?.len();
    if size > FILE_BYTES_MAX {
        return Err(failed(format!("it has more than {FILE_BYTES_MAX} bytes")));
    }
    fs::read_to_string(path).map_err(|error| failed(error.to_string()))
}

fn read_keys(path: &Path) -> Result<JwkSet, IssuersError> {
    let failed = |why: String| IssuersError {
        path: path.to_owned(),
        why,
    };
    let set: JwkSet = serde_json::from_str(&read(path)?).map_err(|error| failed(error.to_string()))?;
    if set.keys.len() > KEYS_MAX {
        return Err(failed(format!("it has more than {KEYS_MAX} keys")));
    }
    if set
        .keys
        .iter()
        .any(|key| matches!(key.algorithm, AlgorithmParameters::OctetKey(_)))
    {
        return Err(failed(
            "it has a shared secret among its keys; only public keys are taken".into(),
        ));
    }
    Ok(set)
}

fn written(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|file| file.modified()).ok()
}

impl Issuers {
    /// Reads a file of issuers (its format is in docs/identity.md), and the keys that it names.
    pub fn load(path: &Path) -> Result<Self, IssuersError> {
        let failed = |why: String| IssuersError {
            path: path.to_owned(),
            why,
        };
        ring_verifier::install();
        let file: File = toml::from_str(&read(path)?).map_err(|error| failed(error.to_string()))?;
        let is_only = file.issuer.len() == 1;
        let mut names = HashSet::new();
        if let Some(twice) = file.issuer.iter().find(|told| !names.insert(&told.issuer)) {
            return Err(failed(format!("the issuer {:?} is there twice", twice.issuer)));
        }
        let issuers = file.issuer.into_iter().map(|mut told| {
            told.check(is_only).map_err(failed)?;
            // A relative path is relative to the file that names it.
            told.keys = path.parent().unwrap_or(Path::new("")).join(&told.keys);
            let keys = IssuerKeys {
                written: written(&told.keys),
                set: read_keys(&told.keys)?,
            };
            Ok(Issuer {
                config: told,
                is_only,
                keys: Mutex::new(keys),
            })
        });
        Ok(Self(issuers.collect::<Result<_, _>>()?))
    }

    /// Checks a token, and returns its subject.
    pub(super) fn check(&self, token: &str) -> Result<Subject, Rejection> {
        #[derive(Deserialize)]
        struct Named {
            iss: String,
        }
        let bad = || not_authenticated("the token is not one that this site takes");
        // Reads the unchecked token only to find the issuer whose keys must check it; nothing else in the token is
        // trusted before that check.
        let named: Named = jsonwebtoken::dangerous::insecure_decode_claims(token).map_err(|_| bad())?;
        let issuer = self.0.iter().find(|issuer| issuer.config.issuer == named.iss);
        issuer.ok_or_else(bad)?.check(token)
    }

    /// Fails if a subject's issuer may not name members of this tenant.
    pub(super) fn check_tenant(&self, subject: &Subject, tenant: &str) -> Result<(), Rejection> {
        let Subject::Claimed { issuer: name, .. } = subject else {
            return Ok(());
        };
        let issuer = self.0.iter().find(|issuer| issuer.config.issuer == *name);
        match issuer.is_some_and(|issuer| issuer.config.may_name(tenant)) {
            true => Ok(()),
            false => Err(Rejection::NotPermitted {
                what: format!(
                    "the issuer {name} may not name members of tenant {tenant}: its `tenants` in the file of issuers does not list it"
                ),
            }),
        }
    }

    /// Fails if a new member is the subject of tokens (`jwt:...`), and its name contains no issuer of the site. The
    /// issuer may be left out if the site has only one.
    pub(super) fn check_member(&self, member: &str) -> Result<(), Rejection> {
        let Some(subject) = member.strip_prefix("jwt:") else {
            return Ok(());
        };
        let names = || self.0.iter().map(|issuer| issuer.config.issuer.as_str());
        let what = match subject.split_once(ISSUER_END) {
            None if self.0.len() > 1 => format!(
                "{member:?} could be a subject of several issuers; write jwt:ISSUER{ISSUER_END}SUBJECT, with one of {}",
                names().collect::<Vec<_>>().join(", ")
            ),
            Some((issuer, _)) if !names().any(|name| name == issuer) => format!(
                "{issuer:?} in {member:?} is no issuer of this site; it has {}",
                names().collect::<Vec<_>>().join(", ")
            ),
            _ => return Ok(()),
        };
        Err(Rejection::BadRequest { what })
    }

    /// Number of issuers.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }
}

impl IssuerFile {
    /// Checks an entry of the file; the error says what is wrong with it.
    fn check(&self, is_only: bool) -> Result<(), String> {
        let mapped = self.map.iter().map(|mapping| &mapping.tenant);
        let mut tenants = mapped.clone().chain(self.tenants.iter().flatten());
        if let Some(tenant) = tenants.find(|tenant| !is_tenant_name(tenant)) {
            return Err(format!("{tenant:?} is no name of a tenant"));
        }
        if self.issuer.is_empty() || self.audience.is_empty() || self.algorithms.is_empty() {
            return Err("an issuer needs a name, an audience and algorithms".into());
        }
        let is_name = |c: char| c != ISSUER_END && !c.is_control() && !c.is_whitespace();
        if self.issuer.len() > ISSUER_BYTES_MAX || !self.issuer.chars().all(is_name) {
            return Err(format!(
                "the name of an issuer has at most {ISSUER_BYTES_MAX} bytes, without spaces and {ISSUER_END}: {:?}",
                self.issuer
            ));
        }
        if let Some(tenant) = mapped.into_iter().find(|tenant| !self.may_name(tenant)) {
            return Err(format!(
                "{} maps to {tenant:?}, which is not in its `tenants`",
                self.issuer
            ));
        }
        if !is_only && self.tenant_claim.is_some() && self.tenants.is_none() {
            return Err(format!(
                "{} names tenants by a claim, and is not the only issuer: say which in `tenants = [...]`",
                self.issuer
            ));
        }
        Ok(())
    }

    fn may_name(&self, tenant: &str) -> bool {
        self.tenants
            .as_ref()
            .is_none_or(|tenants| tenants.iter().any(|own| own == tenant))
    }
}

impl Issuer {
    fn key(&self, kid: Option<&str>, algorithm: Algorithm) -> Option<DecodingKey> {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let now = written(&self.config.keys);
        if now.is_some() && now != keys.written {
            keys.written = now;
            match read_keys(&self.config.keys) {
                Ok(set) => keys.set = set,
                Err(error) => tracing::warn!(%error, "kept the issuer's old keys"),
            }
        }
        let fits = |algorithm: Algorithm, key: &&jsonwebtoken::jwk::Jwk| {
            let common = &key.common;
            let is_named = kid.is_none() || common.key_id.as_deref() == kid;
            let signs = common
                .public_key_use
                .as_ref()
                .is_none_or(|purpose| *purpose == PublicKeyUse::Signature);
            let said = common
                .key_algorithm
                .as_ref()
                .is_none_or(|said| said.to_string() == format!("{algorithm:?}"));
            is_named && signs && said
        };
        let mut fitting = keys.set.keys.iter().filter(|key| fits(algorithm, key));
        let found = fitting.next()?;
        // If the token names no key, exactly one key must fit.
        if kid.is_none() && fitting.next().is_some() {
            return None;
        }
        DecodingKey::from_jwk(found).ok()
    }

    fn check(&self, token: &str) -> Result<Subject, Rejection> {
        let bad = || not_authenticated("the token is not one that this site takes");
        let header = decode_header(token).map_err(|_| bad())?;
        let allowed = self.config.algorithms.iter().map(|allowed| allowed.algorithm());
        let algorithm = allowed
            .into_iter()
            .find(|allowed| *allowed == header.alg)
            .ok_or_else(bad)?;
        let key = self.key(header.kid.as_deref(), algorithm).ok_or_else(bad)?;
        let mut validation = Validation::new(algorithm);
        validation.leeway = LEEWAY_S;
        validation.validate_nbf = true;
        validation.set_issuer(&[&self.config.issuer]);
        validation.set_audience(&[&self.config.audience]);
        validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        let claims = decode::<Map<String, Value>>(token, &key, &validation);
        let claims = claims.map_err(|error| match error.kind() {
            jsonwebtoken::errors::ErrorKind::ExpiredSignature => not_authenticated("the token has expired"),
            jsonwebtoken::errors::ErrorKind::ImmatureSignature => {
                not_authenticated("the token is not valid yet; compare the clocks")
            }
            _ => bad(),
        })?;
        self.subject(&claims.claims).ok_or_else(bad)
    }

    fn subject(&self, claims: &Map<String, Value>) -> Option<Subject> {
        let subject = claims.get("sub")?.as_str()?;
        let is_usable = !subject.is_empty()
            && subject.len() <= NAME_BYTES_MAX
            && !subject.chars().any(|c| c.is_control() || c.is_whitespace());
        let has = |mapping: &&Mapping| match claims.get(&mapping.claim) {
            Some(Value::String(value)) => *value == mapping.value,
            Some(Value::Array(values)) => values.iter().any(|value| value.as_str() == Some(&mapping.value)),
            _ => false,
        };
        let mapped = self.config.map.iter().find(has).map(|mapping| mapping.tenant.clone());
        let claimed = self
            .config
            .tenant_claim
            .as_ref()
            .and_then(|claim| claims.get(claim)?.as_str());
        let claimed = claimed.filter(|tenant| is_tenant_name(tenant) && self.config.may_name(tenant));
        let claimed = claimed.map(str::to_owned);
        is_usable.then(|| Subject::Claimed {
            issuer: self.config.issuer.clone(),
            is_only_issuer: self.is_only,
            subject: subject.to_owned(),
            tenant: mapped.or(claimed).unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests;
