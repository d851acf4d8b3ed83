//! PostgreSQL server that is reached over TLS, like a server on another host, with a certificate of its own authority.

use crate::server::{Server, UNPRIVILEGED, parameters, start};
use postgres::{Client, NoTls};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

/// The server. The clients' files are in its folder: `ca.pem`, `other.pem` (an authority that has issued no
/// certificate), and `pass`.
pub(crate) struct RemoteServer {
    pub(crate) server: Server,
    pub(crate) port: u16,
}

impl RemoteServer {
    /// Starts the server. Prints a message and returns `None` if PostgreSQL is not installed.
    pub(crate) fn start() -> Option<Self> {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
        let port = free.expect("a free port").port();
        let Some(server) = start(port, &["listen_addresses=localhost", "ssl=on"], certify) else {
            eprintln!("skipped for PostgreSQL: it is not installed (Debian: postgresql)");
            return None;
        };
        let local = parameters(server.directory.path(), port, "postgres");
        Client::connect(&local, NoTls)
            .and_then(|mut client| client.batch_execute("CREATE USER remote SUPERUSER PASSWORD 'a:b'"))
            .expect("a user");
        Some(Self { server, port })
    }

    /// Folder of the clients' files.
    pub(crate) fn folder(&self) -> &Path {
        self.server.directory.path()
    }
}

/// Makes an authority, a certificate of the server for `localhost`, and the password file of its clients. Makes the
/// server admit clients from the network only over TLS.
fn certify(directory: &Path, data: &Path) {
    let authority = |file: &str| {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("a certificate");
        fs::write(directory.join(file), certificate.pem()).expect("written");
        Issuer::new(params, key)
    };
    authority("other.pem");
    let issuer = authority("ca.pem");
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    let certificate = params.signed_by(&key, &issuer).expect("a certificate");
    let is_root = nix::unistd::Uid::effective().is_root();
    for (path, text, of_server) in [
        (data.join("server.crt"), certificate.pem(), true),
        (data.join("server.key"), key.serialize_pem(), true),
        (directory.join("pass"), "localhost:*:*:remote:a\\:b\n".into(), false),
    ] {
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("set");
        if of_server && is_root {
            chown(&path, Some(UNPRIVILEGED), Some(UNPRIVILEGED)).expect("root may");
        }
    }
    let admitted = "local all all trust\nhostssl all remote samehost scram-sha-256\n";
    fs::write(data.join("pg_hba.conf"), admitted).expect("written");
}
