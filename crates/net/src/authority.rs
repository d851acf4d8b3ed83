//! Certificate authority of a site: a folder of the operator, from which identities are issued.

use crate::error::IdentityError;
use crate::identity::{CA_FILE, CERTIFICATE_FILE, KEY_FILE};
use crate::peer::{CertificateRole, SCHEME, is_peer_name, is_tenant_name};
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use time::{Duration, OffsetDateTime};

/// File name of the authority's key.
pub const CA_KEY_FILE: &str = "ca-key.pem";
/// Validity of an authority's certificate, days.
const AUTHORITY_DAYS: i64 = 3650;
/// Validity of an identity unless the request says otherwise, days.
pub const IDENTITY_DAYS_DEFAULT: u32 = 30;
/// Longest validity of an identity, days.
pub const IDENTITY_DAYS_MAX: u32 = 3650;
/// Allowance for differing clocks of hosts: certificates become valid this much earlier.
const SKEW: Duration = Duration::minutes(5);

/// Error of making an authority or of issuing an identity.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AuthorityError {
    /// The file already exists.
    #[error("{path} is there already; an authority is made once, and an identity goes into a new folder")]
    Exists {
        /// Path of that file.
        path: PathBuf,
    },
    /// The folder contains no authority.
    #[error("{dir} has no authority; make one with `hotlease identity init --dir {dir}`")]
    None {
        /// The folder.
        dir: PathBuf,
    },
    /// A file cannot be read or written.
    #[error("cannot {what} {path}: {source}")]
    File {
        /// Operation that failed.
        what: &'static str,
        /// File or folder that it failed on.
        path: PathBuf,
        /// Error of the system.
        source: Arc<io::Error>,
    },
    /// The request asks for an identity that cannot be issued.
    #[error("{what}")]
    Request {
        /// Description of the fault in the request.
        what: String,
    },
    /// The issued folder cannot be loaded as an identity.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A key or certificate could not be made.
    #[error("the certificate could not be made: {why}")]
    Crypto {
        /// Error message of the library.
        why: String,
    },
}

impl From<rcgen::Error> for AuthorityError {
    fn from(error: rcgen::Error) -> Self {
        Self::Crypto { why: error.to_string() }
    }
}

/// Contents of an identity to issue.
#[derive(Debug, Clone)]
pub struct IdentityRequest {
    /// Role of the holder.
    pub role: CertificateRole,
    /// Tenant that pays. Required for a client. For an agent: the tenant that it serves by default.
    pub tenant: Option<String>,
    /// Host names and addresses under which a daemon is reached: required for manager and agent.
    pub hosts: Vec<String>,
    /// Start of the validity, normally now. Tests set an earlier time to get an expired identity.
    pub begins: OffsetDateTime,
    /// Validity, days.
    pub days: u32,
}

impl IdentityRequest {
    /// Request for an identity that is valid from now on, for the default number of days.
    pub fn new(role: CertificateRole) -> Self {
        Self {
            role,
            tenant: None,
            hosts: Vec::new(),
            begins: OffsetDateTime::now_utc(),
            days: IDENTITY_DAYS_DEFAULT,
        }
    }
}

/// Makes an authority in a folder; makes the folder too if it is missing.
pub fn init(dir: &Path) -> Result<(), AuthorityError> {
    if let Err(error) = DirBuilder::new().mode(0o700).recursive(true).create(dir) {
        return Err(file_error("make", dir)(error));
    }
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let number: u64 = rand::random();
    // Each authority has a unique name, so that a peer can name the authority that it does not trust.
    let name = format!("hotlease site {number:016x}");
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = OffsetDateTime::now_utc() - SKEW;
    params.not_after = params.not_before + Duration::days(AUTHORITY_DAYS);
    let certificate = params.self_signed(&key)?;
    // Write the key first: the certificate is worth nothing without it, and a second `init` fails here.
    write_new(&dir.join(CA_KEY_FILE), key.serialize_pem().as_bytes(), 0o600)?;
    write_new(&dir.join(CA_FILE), certificate.pem().as_bytes(), 0o644)
}

/// Issues an identity of the authority in `dir` into the folder `out`, which must be new or empty.
pub fn issue(dir: &Path, request: &IdentityRequest, out: &Path) -> Result<(), AuthorityError> {
    let params = params(request)?;
    let key_path = dir.join(CA_KEY_FILE);
    if !key_path.exists() {
        return Err(AuthorityError::None { dir: dir.into() });
    }
    let read = |path: &Path| fs::read_to_string(path).map_err(file_error("read", path));
    let authority_pem = read(&dir.join(CA_FILE))?;
    let issuer = Issuer::from_ca_cert_pem(&authority_pem, KeyPair::from_pem(&read(&key_path)?)?)?;
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?;
    DirBuilder::new()
        .mode(0o700)
        .recursive(true)
        .create(out)
        .map_err(file_error("make", out))?;
    write_new(&out.join(KEY_FILE), key.serialize_pem().as_bytes(), 0o600)?;
    write_new(&out.join(CA_FILE), authority_pem.as_bytes(), 0o644)?;
    write_new(&out.join(CERTIFICATE_FILE), certificate.pem().as_bytes(), 0o644)?;
    // Load the new identity once, so that an unusable identity is found here.
    crate::Identity::load(out)?;
    Ok(())
}

fn params(request: &IdentityRequest) -> Result<CertificateParams, AuthorityError> {
    let refuse = |what: String| Err(AuthorityError::Request { what });
    if let Some(tenant) = &request.tenant
        && !is_tenant_name(tenant)
    {
        return refuse(format!(
            "{tenant:?} is no name of a tenant: 1 to 64 letters, digits, dots, dashes and underscores"
        ));
    }
    if !(1..=IDENTITY_DAYS_MAX).contains(&request.days) {
        return refuse(format!("an identity lasts 1 to {IDENTITY_DAYS_MAX} days"));
    }
    let name = match (request.role, &request.tenant, request.hosts.first()) {
        (CertificateRole::Client, None, _) => return refuse("a client needs a tenant: --tenant NAME".into()),
        (CertificateRole::Manager, Some(_), _) => return refuse("a manager has no tenant".into()),
        (CertificateRole::Client, Some(tenant), _) => tenant,
        (_, _, Some(host)) => host,
        (role, _, None) => {
            return refuse(format!(
                "the role {role} needs the names or addresses under which it is reached: --host NAME"
            ));
        }
    };
    if !is_peer_name(name) {
        return refuse(format!("{name:?} is no name of a host of at most 64 bytes"));
    }
    let mut params = CertificateParams::default();
    let title = format!("hotlease {} {name}", request.role);
    params.distinguished_name.push(DnType::CommonName, title);
    let mut say = |key: &str, value: &str| -> Result<(), AuthorityError> {
        let uri = Ia5String::try_from(format!("{SCHEME}{key}/{value}"))?;
        params.subject_alt_names.push(SanType::URI(uri));
        Ok(())
    };
    say("role", request.role.name())?;
    say("name", name)?;
    if let Some(tenant) = &request.tenant {
        say("tenant", tenant)?;
    }
    for host in &request.hosts {
        params.subject_alt_names.push(match host.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName(Ia5String::try_from(host.as_str())?),
        });
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    if request.role != CertificateRole::Client {
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    params.not_before = request.begins - SKEW;
    params.not_after = request.begins + Duration::days(request.days.into());
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

fn file_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> AuthorityError + use<> {
    let path = path.to_owned();
    move |source| match source.kind() {
        io::ErrorKind::AlreadyExists => AuthorityError::Exists { path },
        _ => AuthorityError::File {
            what,
            path,
            source: Arc::new(source),
        },
    }
}

fn write_new(path: &Path, bytes: &[u8], mode: u32) -> Result<(), AuthorityError> {
    let mut new = OpenOptions::new();
    new.write(true).create_new(true).mode(mode);
    let written = new.open(path).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.map_err(file_error("write", path))
}
