//! The certificate authority of a site: a folder that its operator keeps, and from which identities are
//! issued.

use crate::error::IdentityError;
use crate::identity::{CA_FILE, CERTIFICATE_FILE, KEY_FILE};
use crate::peer::{Role, SCHEME, is_peer_name, is_tenant_name};
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use time::{Duration, OffsetDateTime};

/// File of the authority's key.
pub const CA_KEY_FILE: &str = "ca-key.pem";
/// How long an authority lasts.
const AUTHORITY_DAYS: i64 = 3650;
/// How long an identity lasts unless asked otherwise.
pub const IDENTITY_DAYS_DEFAULT: u32 = 30;
/// Longest that an identity may last.
pub const IDENTITY_DAYS_MAX: u32 = 3650;
/// Clocks of hosts differ.
const SKEW: Duration = Duration::minutes(5);

/// Why nothing was issued.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AuthorityError {
    /// There is one already.
    #[error("{path} is there already; an authority is made once, and an identity goes into a new folder")]
    Exists {
        /// Where.
        path: PathBuf,
    },
    /// There is none.
    #[error("{dir} has no authority; make one with `hotlease identity init --dir {dir}`")]
    None {
        /// Where.
        dir: PathBuf,
    },
    /// A file cannot be read or written.
    #[error("cannot {what} {path}: {source}")]
    File {
        /// What was tried.
        what: &'static str,
        /// Which.
        path: PathBuf,
        /// Why.
        source: Arc<io::Error>,
    },
    /// Such an identity cannot be.
    #[error("{what}")]
    Request {
        /// What is wrong with it.
        what: String,
    },
    /// The folder is not usable.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Keys or certificates could not be made.
    #[error("the certificate could not be made: {why}")]
    Crypto {
        /// The library's words.
        why: String,
    },
}

impl From<rcgen::Error> for AuthorityError {
    fn from(error: rcgen::Error) -> Self {
        Self::Crypto {
            why: error.to_string(),
        }
    }
}

/// What an identity is to say.
#[derive(Debug, Clone)]
pub struct Request {
    /// What its holder may be.
    pub role: Role,
    /// Who pays: needed for a client; for an agent the tenant that it serves unless told otherwise.
    pub tenant: Option<String>,
    /// Names and addresses under which a daemon is reached: needed for manager and agent.
    pub hosts: Vec<String>,
    /// When it begins to be valid, before now; a test's way to an expired one.
    pub begins: OffsetDateTime,
    /// How long it lasts.
    pub days: u32,
}

impl Request {
    /// From now on, for the usual time.
    pub fn new(role: Role) -> Self {
        Self {
            role,
            tenant: None,
            hosts: Vec::new(),
            begins: OffsetDateTime::now_utc(),
            days: IDENTITY_DAYS_DEFAULT,
        }
    }
}

/// Makes an authority in a folder, which is made too if it is missing.
pub fn init(dir: &Path) -> Result<(), AuthorityError> {
    if let Err(error) = DirBuilder::new().mode(0o700).recursive(true).create(dir) {
        return Err(file("make", dir)(error));
    }
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let number: u64 = rand::random();
    // Two authorities have two names, so that a peer can say which of them it does not know.
    let name = format!("hotlease site {number:016x}");
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = OffsetDateTime::now_utc() - SKEW;
    params.not_after = params.not_before + Duration::days(AUTHORITY_DAYS);
    let certificate = params.self_signed(&key)?;
    // The key first: without it the rest is worth nothing, and a second `init` ends here.
    write_new(&dir.join(CA_KEY_FILE), key.serialize_pem().as_bytes(), 0o600)?;
    write_new(&dir.join(CA_FILE), certificate.pem().as_bytes(), 0o644)
}

/// Issues an identity of the authority in `dir` into the new or empty folder `out`.
pub fn issue(dir: &Path, request: &Request, out: &Path) -> Result<(), AuthorityError> {
    let params = params(request)?;
    let key_path = dir.join(CA_KEY_FILE);
    if !key_path.exists() {
        return Err(AuthorityError::None { dir: dir.into() });
    }
    let read = |path: &Path| fs::read_to_string(path).map_err(file("read", path));
    let authority_pem = read(&dir.join(CA_FILE))?;
    let issuer = Issuer::from_ca_cert_pem(&authority_pem, KeyPair::from_pem(&read(&key_path)?)?)?;
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?;
    DirBuilder::new()
        .mode(0o700)
        .recursive(true)
        .create(out)
        .map_err(file("make", out))?;
    write_new(&out.join(KEY_FILE), key.serialize_pem().as_bytes(), 0o600)?;
    write_new(&out.join(CA_FILE), authority_pem.as_bytes(), 0o644)?;
    write_new(&out.join(CERTIFICATE_FILE), certificate.pem().as_bytes(), 0o644)?;
    // What nobody could use is better found here.
    crate::Identity::load(out)?;
    Ok(())
}

fn params(request: &Request) -> Result<CertificateParams, AuthorityError> {
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
        (Role::Client, None, _) => return refuse("a client needs a tenant: --tenant NAME".into()),
        (Role::Manager, Some(_), _) => return refuse("a manager has no tenant".into()),
        (Role::Client, Some(tenant), _) => tenant,
        (_, _, Some(host)) => host,
        (role, _, None) => {
            return refuse(format!(
                "a {role} needs the names or addresses under which it is reached: --host NAME"
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
    if request.role != Role::Client {
        params
            .extended_key_usages
            .push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    params.not_before = request.begins - SKEW;
    params.not_after = request.begins + Duration::days(request.days.into());
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> AuthorityError + use<> {
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
    written.map_err(file("write", path))
}
