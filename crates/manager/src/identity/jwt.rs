//! JSON web tokens of issuers that the site trusts: an identity provider of the organisation, or the site's own.
//!
//! Accepted are RS256, ES256 and EdDSA, as far as the site's file allows them. The keys are in a file that is read
//! again when it changes. Issuer, audience, subject and expiry must be present and right, with 30 s for clocks that
//! differ. A file with a shared secret among its keys is refused, so that no public key can be mistaken for a secret.

mod ring_verifier;

use super::Subject;
use super::not_authenticated;
use hotlease_net::peer::is_tenant_name;
use hotlease_store::NAME_BYTES_MAX;
use hotlease_wire::Rejection;
use jsonwebtoken::jwk::{AlgorithmParameters, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

/// Allowance for clocks that differ, seconds.
const LEEWAY_S: u64 = 30;
/// Longest file of issuers or of keys, bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Limit of keys of an issuer.
const KEYS_MAX: usize = 64;

/// Error of a file of issuers or of keys.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {why}")]
pub struct IssuersError {
    /// Path of the file.
    path: PathBuf,
    /// What is wrong with it.
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
    tenant_claim: Option<String>,
    #[serde(default)]
    map: Vec<Mapping>,
}

/// Rule of the site's file: a token whose claim is this value, or a list that contains it, belongs to the tenant.
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
        let issuers = file.issuer.into_iter().map(|mut told| {
            let tenants = told.map.iter().map(|mapping| &mapping.tenant);
            if let Some(tenant) = tenants.into_iter().find(|tenant| !is_tenant_name(tenant)) {
                return Err(failed(format!("{tenant:?} is no name of a tenant")));
            }
            if told.issuer.is_empty() || told.audience.is_empty() || told.algorithms.is_empty() {
                return Err(failed("an issuer needs a name, an audience and algorithms".into()));
            }
            // A relative path is relative to the file that names it.
            told.keys = path.parent().unwrap_or(Path::new("")).join(&told.keys);
            let keys = IssuerKeys {
                written: written(&told.keys),
                set: read_keys(&told.keys)?,
            };
            Ok(Issuer {
                config: told,
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
        // Only to find the issuer whose keys the token must be checked with; nothing else in it is believed before
        // that.
        let named: Named = jsonwebtoken::dangerous::insecure_decode_claims(token).map_err(|_| bad())?;
        let issuer = self.0.iter().find(|issuer| issuer.config.issuer == named.iss);
        issuer.ok_or_else(bad)?.check(token)
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
        let claimed = claimed.filter(|tenant| is_tenant_name(tenant)).map(str::to_owned);
        is_usable.then(|| Subject::Claimed {
            subject: subject.to_owned(),
            tenant: mapped.or(claimed).unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests;
